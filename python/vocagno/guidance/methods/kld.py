"""KLD: the KL divergence from a teacher of the same vocabulary (Eq. 5 of arXiv 2503.19123)."""

from vocagno.guidance.distillation import Distance, forward_kl, reverse_kl
from vocagno.guidance.methods.distillation import Distillation
from vocagno.models.head import Head
from vocagno.teacher.states import TeacherStates


class KullbackLeibler(Distillation):
    """`method: kld`."""

    summary = "Trained on every token, and towards the teacher's distribution by KL divergence."

    @property
    def distance(self) -> Distance:
        """As `Distillation.distance`."""
        return reverse_kl if self.guidance.divergence == "reverse" else forward_kl

    def num_ids(self, head: Head, teacher: TeacherStates) -> int | None:
        """As `Distillation.num_ids`: ids of only one side are dropped, the rest is renormalised.

        Raises: ValueError if more ids are to be compared than student or teacher have.
        """
        ids, of_teacher = head.vocabulary_size, teacher.head.vocabulary_size
        shared = ids if teacher.num_ids is None else teacher.num_ids
        if shared > min(ids, of_teacher):
            raise ValueError(
                f"kld compares {shared} ids, but the student has {ids} and the teacher "
                f"{of_teacher}; give num_ids, the size of the vocabulary that they share"
            )
        return shared

"""The teacher's probabilities of buckets of ids, made from its most likely tokens.

Where both sides start a token, the teacher's candidates there are added up over the buckets of both
vocabularies (`vocagno.buckets`), and the student's distribution is compared with these sums
(`bucket_loss`).

B: rows, T: predicted tokens of a row, n: student tokens of all rows, M: the teacher's tokens of all
their pieces, K: candidates of a token, S: columns for buckets at a token, K for each store.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from vocagno.alignment.mapping import starts
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, require
from vocagno.guidance.bucket_loss import BucketTable, on_device
from vocagno.guidance.comparison import DocumentPairs
from vocagno.system.files import digest
from vocagno.teacher.candidates import Candidates
from vocagno.tokens.buckets import Boundaries, Buckets

NO_BUCKET = -1
"""The number of no bucket: an empty column, or a candidate that no id of the student matches."""
_LEAST_ASKED = 0.002
"""The least probability of a candidate that is looked up in `Boundaries`: a new pair of tokens
takes the host 15 us."""
_LEAST_LEFT = 0.1
"""The least probability that must be left without impossible candidates: dividing by less would
multiply the rest by more than ten."""
_AT_A_TIME = 1 << 21
"""The numbers that exist while stored candidates are added up: K x K for each token."""
_DEFINITION = 3
"""The version of how targets are made. It is part of the table's key, so that batches of one
version do not train with the table of another."""


class Targets(NamedTuple):
    """The teacher's probabilities of buckets at n tokens, P of `BucketCrossEntropy`; what is
    missing from 1 is the probability of "other"."""

    bucket_nS: Tensor
    """int32: the number of a bucket, those of a second store after those of the first; -1 for none.
    A token that is not compared has -1 in all columns."""
    mass_nS: Tensor
    """float32: the probability of that bucket, 0 for none."""
    entropy_nR: Tensor
    """float32, nats: the entropy of the whole distribution of each of R teachers at the token; NaN
    if it is not known."""


class BucketTargets:
    """Makes `Targets` of the candidates of one store, or of several teachers' stores of a text."""

    def __init__(
        self,
        buckets: Buckets | Sequence[Buckets],
        num_candidates: int | Sequence[int],
        shares: Sequence[float] | None = None,
    ) -> None:
        """Args:
            buckets: those of the student's tokenizer with each teacher's (`vocagno.buckets`).
            num_candidates: K of each store.
            shares: the weight of each teacher; default: all alike.
        Raises: BucketError for tokenizers that share too little; ConfigError for buckets of several
            students, and for shares that are not positive.
        """
        self.buckets: list[Buckets] = [buckets] if isinstance(buckets, Buckets) else [*buckets]
        places = [num_candidates] if isinstance(num_candidates, int) else [*num_candidates]
        weights = [1.0] * len(places) if shares is None else [*shares]
        require(
            len(self.buckets) == len(places) == len(weights) > 0,
            f"buckets of {len(self.buckets)} teachers, candidates of {len(places)} and "
            f"{len(weights)} shares; give one for each",
        )
        require(
            all(0 < share < math.inf for share in weights),
            f"shares: expected numbers above 0, got {weights}",
        )
        require(min(places) > 0, "the scores have no candidates; score with `--candidates`")
        students = {pair.fingerprints[0] for pair in self.buckets}
        require(len(students) == 1, "the buckets are of several student tokenizers")
        for pair in self.buckets:
            pair.check()
        self.student: str = students.pop()
        self.teachers: list[str] = [pair.fingerprints[1] for pair in self.buckets]
        self.first: list[int] = np.cumsum([0, *(pair.count for pair in self.buckets)]).tolist()
        of_student = np.stack([pair.student for pair in self.buckets])
        members, counts = [], []
        for bucket_of_id in of_student:
            # Sorted by bucket, so that the ids of each stand together; those in none come first.
            order = np.argsort(bucket_of_id, kind="stable")
            members.append(order[np.count_nonzero(bucket_of_id < 0) :])
            counts.append(np.bincount(bucket_of_id[bucket_of_id >= 0]))
        self._of_teachers: list[Tensor] = [torch.from_numpy(pair.teacher) for pair in self.buckets]
        tables = of_student, *(pair.teacher for pair in self.buckets)
        normalized = [share / sum(weights) for share in weights]
        corrected = [pair.boundaries is not None for pair in self.buckets]
        self.table: BucketTable = BucketTable(
            torch.from_numpy(np.concatenate(members)),
            torch.from_numpy(np.cumsum(np.concatenate([[0], *counts]))),
            places,
            tuple(normalized),
            of_student.shape[1],
            digest(
                str([_DEFINITION, places, normalized, self.teachers, corrected]),
                *(table.tobytes() for table in tables),
            ),
        )

    def rows(
        self,
        pairs: DocumentPairs,
        ids: NDArray[np.int64],
        tokens: NDArray[np.int32],
        number: int = 0,
    ) -> NDArray[np.int64]:
        """Finds where both models predict the same text, which is where both sides start a token.

        Returns: (n, 3) for each student token: the row of the teacher token that starts at its
            byte, or -1; the id of that token, or -1; and the id of the student token before it in
            the piece, -1 for none.

        The row is -1, too, if the two real tokens are in different buckets. Then what follows in
        the text decided how it is cut, which no token tells; or one side has a space of its own
        there, as before the first word of a text.

        Args:
            ids: (n,) ids of the student. tokens: (M,) ids of the teacher.
            number: that of the store.
        """
        # Workers of a DataLoader share the cores among them, as their torch does.
        num_threads = None if get_worker_info() is None else 1
        rows = starts(
            pairs.student_spans, pairs.teacher_spans, **pairs.cu_seqlens, num_threads=num_threads
        )
        buckets = self.buckets[number]
        of_student = _look_up(buckets.student, ids)
        of_teacher = of_student
        if len(tokens):
            of_teacher = _look_up(buckets.teacher, tokens)[np.maximum(rows, 0)]
        is_alike = (rows >= 0) & (of_student >= 0) & (of_student == of_teacher)
        rows = np.where(is_alike, rows, -1)
        before = np.append(-1, ids)[:-1]
        # The first token of a piece follows another document.
        before[pairs.student_cu[:-1][np.diff(pairs.student_cu) > 0]] = -1
        real = np.append(tokens, -1)[rows]
        return np.stack([rows, real, before], 1).astype(np.int64)

    def of_stored(
        self, pairs: DocumentPairs, ids: NDArray[np.int64], candidates: Candidates, number: int = 0
    ) -> Targets:
        """Makes the targets of all n tokens from a store's candidates of the teacher's M.

        Args: ids: (n,) ids of the student. number: that of the store.
        """
        rows_n3 = torch.from_numpy(self.rows(pairs, ids, candidates.tokens, number))
        ids_MK, mass_MK, entropy_M = map(
            torch.from_numpy,
            (candidates.ids, candidates.probabilities, candidates.nats_of_entropy),
        )
        size = max(1, _AT_A_TIME // self.table.places[number] ** 2)
        parts = [
            self.at(rows, ids_MK, mass_MK, entropy_M, number) for rows in torch.split(rows_n3, size)
        ]
        return Targets(*map(torch.cat, zip(*parts, strict=True)))

    def at(
        self, rows_n3: Tensor, ids_MK: Tensor, mass_MK: Tensor, entropy_M: Tensor, number: int = 0
    ) -> Targets:
        """Makes the targets from the candidates at the rows that `rows` finds, on any device.

        Candidates that cannot follow the student token before them (`Boundaries`) are dropped. The
        one that did follow and those below 0.002 always stay. What is left, with "other", is
        divided by its sum; if that is less than 0.1, nothing is compared. What can follow is looked
        up on the host, to which the candidates of a live teacher are copied.

        Args:
            rows_n3: (..., 3) what `rows` returns, in any shape.
            ids_MK: ids of the teacher. mass_MK: their probabilities. entropy_M: nats.
            number: that of the teacher, where there are several.
        """
        shape = (*rows_n3.shape[:-1], self.table.places[number])
        rows_n, real_n, before_n = rows_n3.flatten(0, -2).unbind(-1)
        if not len(ids_MK):
            nothing = rows_n.new_full(shape, NO_BUCKET, dtype=torch.int32)
            entropy = entropy_M.new_full((*shape[:-1], 1), torch.nan)
            return Targets(nothing, torch.zeros(shape, device=rows_n.device), entropy)
        ids_nK, mass_nK = ids_MK[rows_n.clamp_min(0)], mass_MK[rows_n.clamp_min(0)]
        bucket_of = on_device(self._of_teachers[number], rows_n.device)
        # A model may have more ids than its tokenizer, and so than the table.
        is_valid_nK = (ids_nK >= 0) & (ids_nK < len(bucket_of)) & (rows_n >= 0)[:, None]
        table_ids_nK = torch.where(is_valid_nK, ids_nK, 0).long()
        bucket_nK = torch.where(is_valid_nK, bucket_of[table_ids_nK], NO_BUCKET)
        boundaries = self.buckets[number].boundaries
        if boundaries is not None:
            is_asked_nK = is_valid_nK & (before_n >= 0)[:, None] & (mass_nK >= _LEAST_ASKED)
            is_asked_nK &= ids_nK != real_n[:, None]  # what followed is possible
            is_out_nK = _find_impossible(boundaries, before_n, ids_nK, is_asked_nK)
            left_n1 = 1 - (mass_nK * is_out_nK).sum(1, keepdim=True)
            is_out_nK |= left_n1 < _LEAST_LEFT
            mass_nK = mass_nK.masked_fill(is_out_nK, 0.0) / left_n1.clamp_min(_LEAST_LEFT)
            bucket_nK = bucket_nK.masked_fill(is_out_nK, NO_BUCKET)
        bucket_nK, mass_nK = _add_up(bucket_nK, mass_nK)
        bucket_nK = torch.where(bucket_nK >= 0, bucket_nK + self.first[number], NO_BUCKET)
        entropy_n = entropy_M[rows_n.clamp_min(0)].masked_fill(rows_n < 0, torch.nan)
        at_tokens = bucket_nK.int().view(shape), mass_nK.view(shape)
        return Targets(*at_tokens, entropy_n.view(*shape[:-1], 1))


def check_targets(
    guidance: GuidanceConfig,
    targets: BucketTargets | None,
    student: str | None = None,
    teacher: str | None = None,
    number: int = 0,
) -> None:
    """Compares the buckets with what they are to be used with.

    Args:
        student, teacher: `TokenSpans.fingerprint` of the student's tokenizer and of the scores',
            if they are known.
        number: that of the teacher, where there are several.
    Raises: ConfigError if a method needs buckets and has none, has some without need, or has those
        of other tokenizers.
    """
    if guidance.needs_candidates == (targets is None):
        raise ConfigError(
            f"targets: guidance.method: {guidance.method} needs "
            + ("BucketTargets(vocagno.buckets(STUDENT, TEACHER), K)" if targets is None else "none")
        )
    if targets is None:
        return
    pairs = {"student": (student, targets.student), "teacher": (teacher, targets.teachers[number])}
    for side, (fingerprint, of_buckets) in pairs.items():
        require(
            fingerprint in (None, of_buckets),
            f"targets: their buckets are of another {side} tokenizer; make buckets of this one "
            "with vocagno.buckets",
        )


def _look_up(table: NDArray[np.int32], ids: NDArray[Any]) -> NDArray[np.int32]:
    """The bucket of each id; -1 for ids beyond the table, of which a model may have some."""
    return np.append(table, np.int32(NO_BUCKET))[np.where(ids < len(table), ids, len(table))]


def _find_impossible(
    boundaries: Boundaries, before_n: Tensor, ids_nK: Tensor, is_asked_nK: Tensor
) -> Tensor:
    """(n, K) True for candidates, among those that are asked, that cannot follow the student token
    before them, because the student's tokenizer ends no token between their texts."""
    is_out_nK = torch.zeros_like(is_asked_nK)
    before, ids = before_n[:, None].expand_as(ids_nK)[is_asked_nK], ids_nK[is_asked_nK].long()
    can_follow = boundaries.can_follow(before.cpu().numpy(), ids.cpu().numpy())
    is_out_nK[is_asked_nK] = torch.from_numpy(~can_follow).to(is_out_nK.device)
    return is_out_nK


def _add_up(bucket_nK: Tensor, mass_nK: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves each bucket of a row once, in its first column, with the sum of its probabilities."""
    same_nKK = bucket_nK[:, :, None] == bucket_nK[:, None, :]
    sums_nK = (same_nKK * mass_nK[:, None, :]).sum(2)
    is_first_nK = ~same_nKK.tril(-1).any(2) & (bucket_nK >= 0)
    return torch.where(is_first_nK, bucket_nK, NO_BUCKET), torch.where(is_first_nK, sums_nK, 0.0)

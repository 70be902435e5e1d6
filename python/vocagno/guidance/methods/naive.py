"""Naive continual pretraining: all tokens, no teacher."""

from vocagno.guidance.methods.base import Method


class Naive(Method):
    """`method: cpt`."""

    summary = "Trained on every token, without a teacher."

    @property
    def tags(self) -> list[str]:
        """As `Method.tags`."""
        return ["vocagno"]

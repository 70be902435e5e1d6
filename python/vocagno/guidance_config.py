"""The part of a run's configuration that says what the teacher does to it: the methods."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from vocagno.errors import ConfigError, require
from vocagno.reduction import Reduction

Method = Literal["vocagno", "rho1", "chunk", "kld", "uld", "cpt"]

_OPTIONS_OF: dict[str, tuple[Method, ...]] = {
    "criterion": ("rho1",),
    "chunks": ("chunk",),
    "selection": ("chunk",),
    "divergence": ("kld",),
    "pairing": ("uld",),
    "distillation_weight": ("kld", "uld"),
}
"""Options that say nothing to other methods."""

_USUAL_WEIGHT = {"kld": 1.0, "uld": 0.5}


@dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """What the student learns from the teacher (arXiv 2503.19123, Eq. 2 to 6).

    vocagno, rho1 and chunk choose the tokens that train, each by another mapping; kld and uld train
    on all tokens and add a distance between the distributions of both models; cpt is neither.
    """

    method: Method = "vocagno"
    """vocagno: tokens chosen by a teacher of any vocabulary, through the text they share.
    rho1: tokens chosen by a teacher of the same vocabulary (Rho-1, arXiv 2404.07965).
    chunk: chunks chosen; both sequences of a row are cut into as many equal chunks.
    kld: all tokens, and the KL divergence from a teacher of the same vocabulary (Eq. 5).
    uld: all tokens, and the Wasserstein distance of sorted distributions (Eq. 6).
    cpt: naive continual pretraining, on all tokens and without a teacher."""
    top_fraction: float = 0.4
    """Share of the competing tokens (or chunks) kept in each scope, in (0, 1] (Eq. 4)."""
    aggregation: Reduction = "max"
    """How the losses of several teacher tokens become one (Eq. 2)."""
    unmapped: Literal["include", "exclude", "mean"] = "include"
    """Tokens without a teacher loss (special ones, and those that the teacher was not asked for):
    all kept, none, or competing with the mean loss of the teacher's own tokens in the scope."""
    scope: Literal["sequence", "micro_batch", "step"] = "sequence"
    """What the excess losses are ranked in: each row; all rows of a micro-batch; or those of all
    processes in one micro-step (a micro-batch of each)."""
    normalize: Literal["tokens", "selected"] = "tokens"
    """Denominator of the loss of a step: all predicted tokens (Eq. 3) or the kept ones."""
    min_coverage: float = 0.99
    """The run stops if less of the tokens with text is mapped, or has a teacher loss."""
    criterion: Literal["excess", "excess_and_entropy"] = "excess"
    """rho1: what ranks a token: its excess loss; or the worse of two places, by excess loss
    (largest first) and by entropy of the teacher's distribution (smallest first), which needs a
    live teacher."""
    chunks: int = 32
    """chunk: chunks of a row; each side is cut at boundaries `i * tokens // chunks`."""
    selection: Literal["teacher", "random"] = "teacher"
    """chunk: by excess loss, or at random, which needs no teacher."""
    divergence: Literal["reverse", "forward"] = "reverse"
    """kld: reverse: KL(student || teacher), as Eq. 5; forward: KL(teacher || student)."""
    pairing: Literal["positional", "aligned"] = "positional"
    """uld: which teacher token a student token is compared with: the one of the same number in the
    document's part of a row (as published); or the first that it shares text with."""
    distillation_weight: float | None = None
    """kld, uld: what the distance is multiplied by before it is added to the cross-entropy; default
    1 for kld and 0.5 for uld, as in the paper."""

    def __post_init__(self) -> None:
        require(
            0 < self.top_fraction <= 1,
            f"guidance.top_fraction must be in (0, 1], got {self.top_fraction}",
        )
        require(
            0 <= self.min_coverage <= 1,
            f"guidance.min_coverage must be in [0, 1], got {self.min_coverage}",
        )
        require(self.chunks >= 1, f"guidance.chunks must be at least 1, got {self.chunks}")
        require(
            self.distillation_weight is None or self.distillation_weight >= 0,
            f"guidance.distillation_weight is negative: {self.distillation_weight}",
        )
        defaults = {field.name: field.default for field in fields(self)}
        for name, methods in _OPTIONS_OF.items():
            if getattr(self, name) != defaults[name] and self.method not in methods:
                raise ConfigError(
                    f"guidance.{name}: is for guidance.method {' and '.join(methods)}, not "
                    f"{self.method}; leave it out"
                )
        if self.method == "chunk":
            require(
                self.scope == "sequence",
                f"guidance.scope: {self.scope}: chunks are ranked in their own row; use sequence",
            )
            require(
                self.normalize == "tokens",
                "guidance.normalize: selected: how many tokens the chosen chunks hold is known too "
                "late to divide by it; use tokens",
            )

    @property
    def selects(self) -> bool:
        """Whether some tokens train and others do not."""
        return self.method in ("vocagno", "rho1", "chunk")

    @property
    def distils(self) -> bool:
        """Whether whole distributions of the teacher are needed."""
        return self.method in ("kld", "uld")

    @property
    def needs_teacher(self) -> bool:
        """Whether the method has one at all."""
        return self.method != "cpt" and not self.is_random

    @property
    def is_random(self) -> bool:
        """Whether the choice is left to chance."""
        return self.method == "chunk" and self.selection == "random"

    @property
    def needs_live_teacher(self) -> bool:
        """Whether stored losses cannot tell what the method has to know."""
        return self.distils or self.criterion == "excess_and_entropy"

    @property
    def needs_same_vocabulary(self) -> bool:
        """Whether the teacher's ids must be the student's."""
        return self.method in ("rho1", "kld")

    @property
    def weight_of_distance(self) -> float:
        """What the distance of `kld` and `uld` is multiplied by."""
        if self.distillation_weight is not None:
            return self.distillation_weight
        return _USUAL_WEIGHT[self.method]


def as_naive(guidance: GuidanceConfig) -> GuidanceConfig:
    """Naive training that otherwise counts and divides alike."""
    kept: dict[str, Any] = {"normalize": guidance.normalize, "min_coverage": guidance.min_coverage}
    return GuidanceConfig(method="cpt", **kept)

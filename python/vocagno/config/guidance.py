"""The part of a run's configuration that says what the teacher does to it: the methods."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from vocagno.alignment.mapping import Reduction
from vocagno.config.option_types import check_types
from vocagno.errors import ConfigError, require, require_at_least

Method = Literal["vocagno", "rho1", "chunk", "alm", "distill", "kld", "uld", "cpt"]

_RANKING: tuple[Method, ...] = ("vocagno", "rho1")
_OR_NAIVE: tuple[Method, ...] = (*_RANKING, "cpt")
"""A guided run's options may stand where `method: cpt` makes it naive, to compare the two."""
_BY_GROUP: tuple[Method, ...] = ("alm", "distill")
"""Methods that train on all tokens, towards the teacher."""
_NOT_BY_DISTANCE: tuple[Method, ...] = (*_OR_NAIVE, "chunk", *_BY_GROUP)
_OPTIONS_OF: dict[str, tuple[Method, ...]] = {
    "aggregation": _NOT_BY_DISTANCE,
    "unmapped": _NOT_BY_DISTANCE,
    "scope": _NOT_BY_DISTANCE,
    "unit": ("vocagno", "cpt", *_BY_GROUP),
    "max_threshold": _OR_NAIVE,
    "window_max_loss": (*_OR_NAIVE, *_BY_GROUP),
    "window": (*_OR_NAIVE, *_BY_GROUP),
    "criterion": ("rho1",),
    "chunks": ("chunk",),
    "selection": ("chunk",),
    "divergence": ("kld",),
    "pairing": ("uld",),
    "distillation_weight": ("kld", "uld", *_BY_GROUP),
    "distill_where": ("distill",),
}
"""Options that say nothing to other methods."""

_USUAL_WEIGHT: dict[str, float] = {"kld": 1.0, "uld": 0.5, "alm": 0.5, "distill": 0.5}
_PAPERS_QUOTA = 0.4
_MAX_LOSS_OF_LINES = 2.0


@dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """What the student learns from the teacher (arXiv 2503.19123, Eq. 2 to 6).

    vocagno, rho1 and chunk choose the tokens that train, each by another mapping; alm and distill
    train towards the teacher's losses and most likely tokens, from a store, with any vocabulary;
    kld and uld add a distance between the distributions of both models; cpt is naive training.

    Under vocagno `top_fraction: 0.4` is the paper's rule. Without `top_fraction` and
    `max_threshold` all tokens train but those on lines that are noise to the teacher:
    `unit: group`, `window_max_loss: 2.0` (docs/guidance.md).
    """

    method: Method | str = "vocagno"
    """vocagno: tokens chosen by a teacher of any vocabulary, through the text they share.
    rho1: tokens chosen by a teacher of the same vocabulary (Rho-1, arXiv 2404.07965).
    chunk: chunks chosen; both sequences of a row are cut into as many equal chunks.
    alm: all tokens; the likelihood of each group moves towards the teacher's (arXiv 2503.20083).
    distill: all tokens; where both models start a token, the distribution moves towards the
    teacher's, over buckets of both vocabularies (`vocagno.buckets`); needs `teacher.candidates`.
    kld: all tokens, and the KL divergence from a teacher of the same vocabulary (Eq. 5).
    uld: all tokens, and the Wasserstein distance of sorted distributions (Eq. 6).
    cpt: naive continual pretraining, on all tokens and without a teacher.
    MODULE:CLASS: a rule of your own, a `TokenSelection` in a module of this folder or installed,
    with the options of vocagno; its quota is 0.4 by default (docs/methods.md)."""
    unit: Literal["token", "group"] | None = None
    """What both models are compared on. token: a student token and the teacher tokens that share
    text with it (Eq. 2). group: the smallest runs of both sides that cover the same text
    (`vocagno.groups`); the excess loss of a group is the sum of the student's losses minus the sum
    of the teacher's, divided by its student tokens. null: group where no rule is named, else
    token. alm and distill: group."""
    top_fraction: float | None = None
    """Quota: share of the competing tokens (or chunks) kept in each scope, in (0, 1] (Eq. 4; the
    paper takes 0.4). Their smallest excess loss is the threshold. null: no quota; the threshold is
    `max_threshold`, or no unit is dropped for its own excess loss; for rho1 and chunk 0.4, if
    nothing else is named."""
    max_threshold: float | None = None
    """Largest threshold, in nats a token: units whose excess loss reaches it are kept even if the
    quota is full. A threshold above zero stops training tokens that the student still predicts
    worse than the teacher (docs/guidance.md). null: no limit, as in the paper."""
    window: Literal["line"] | None = None
    """Neighbours that tell whether a unit is noise: the other tokens of its line of text. It
    follows from `window_max_loss` and need not be written. Where it is, it names a rule: `unit` is
    token by default."""
    window_max_loss: float | None = None
    """A unit is noise, and dropped, if the teacher loses more than this on the rest of its line, in
    nats a byte; default 2 where no rule is named, none for alm and distill. Each token of the
    teacher counts once: the unit itself, which is not counted, is the group, for `unit: token`,
    too. The mean is smoothed: 8 bytes of 1 nat each are added to the rest of the line."""
    aggregation: Reduction = "max"
    """How the losses of several teacher tokens become one (Eq. 2)."""
    unmapped: Literal["include", "exclude", "mean"] = "include"
    """Tokens without a teacher loss (special ones, and those that the teacher was not asked for):
    all kept, none, or competing with the mean loss of the teacher's own tokens in the scope."""
    scope: Literal["sequence", "micro_batch"] = "sequence"
    """What the excess losses are ranked in: each row, or all rows of a micro-batch."""
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
    """alm, distill: the share of the teacher in a token's loss, from 0 to 1; default 0.5. kld, uld:
    what the distance is multiplied by before it is added to the cross-entropy; default 1 for kld
    and 0.5 for uld, as in the paper."""
    distill_where: Literal["surer", "all"] = "surer"
    """distill: of the places where both models start a token: surer: where the entropy of the
    teacher's whole distribution is less than that of the student's, or at most 0.25 nats more; all:
    all of them, for candidates without entropies (of a server, vLLM, or baked)."""

    def __post_init__(self) -> None:
        check_types("guidance", self)
        require(
            self.is_own or self.method in get_args(Method),
            f"guidance.method: expected one of {', '.join(get_args(Method))}, or MODULE:CLASS for "
            f"a rule of your own, got {self.method!r}",
        )
        self._set_defaults()
        require(
            self.top_fraction is None or 0 < self.top_fraction <= 1,
            f"guidance.top_fraction must be in (0, 1] or null, got {self.top_fraction}",
        )
        require(
            0 <= self.min_coverage <= 1,
            f"guidance.min_coverage must be in [0, 1], got {self.min_coverage}",
        )
        require_at_least(1, "guidance", self, "chunks")
        require_at_least(0, "guidance", self, "distillation_weight")
        require(
            self.method not in _BY_GROUP or (self.distillation_weight or 0) <= 1,
            f"guidance.distillation_weight: {self.distillation_weight}: a share, at most 1, for "
            f"guidance.method: {self.method}",
        )
        defaults = {field.name: field.default for field in fields(self)} | {"unit": "token"}
        method = "vocagno" if self.is_own else self.method
        for name, methods in _OPTIONS_OF.items():
            if getattr(self, name) != defaults[name] and method not in methods:
                raise ConfigError(
                    f"guidance.{name}: is for guidance.method {_listed(methods)}, not "
                    f"{self.method}; omit it"
                )
        self._check_combinations()

    def _set_defaults(self) -> None:
        """Replaces null where it stands for another value."""
        found: dict[str, Any] = {}
        if (self.top_fraction, self.max_threshold, self.window) == (None, None, None):
            if self.method == "vocagno":
                found["unit"] = self.unit or "group"
                if self.window_max_loss is None:
                    found["window_max_loss"] = _MAX_LOSS_OF_LINES
            elif self.method in ("rho1", "chunk") and self.window_max_loss is None:
                found["top_fraction"] = _PAPERS_QUOTA
        if self.is_own and self.top_fraction is None:
            found["top_fraction"] = _PAPERS_QUOTA
        if found.get("window_max_loss", self.window_max_loss) is not None:
            found["window"] = "line"
        if self.method in _BY_GROUP:
            require(
                self.unit != "token",
                f"guidance.unit: token: guidance.method: {self.method} has groups; omit it",
            )
            found["unit"] = "group"
        for name, value in {"unit": self.unit or "token", **found}.items():
            object.__setattr__(self, name, value)

    def _check_combinations(self) -> None:
        require(
            self.unit == "token" or self.aggregation == "max",
            f"guidance.aggregation: {self.aggregation}: a group adds its losses up; omit it, or "
            "give guidance.top_fraction (the paper's rule) or guidance.unit: token",
        )
        require(
            self.window is None or self.window_max_loss is not None,
            "guidance.window: needs guidance.window_max_loss",
        )
        require(
            self.criterion == "excess" or self.keeps_quota,
            "guidance.criterion: excess_and_entropy keeps the paper's quota; omit "
            "guidance.max_threshold and window_max_loss",
        )
        if (self.selects and self.method != "chunk") or self.method in _BY_GROUP:
            require(
                self.keeps_quota or self.normalize == "tokens",
                "guidance.normalize: selected: only a quota says before the forward pass how many "
                "tokens are kept; use tokens, or give only guidance.top_fraction",
            )
        if self.method in _BY_GROUP:
            require(
                self.top_fraction is None,
                f"guidance.top_fraction: guidance.method: {self.method} ranks nothing; omit it",
            )
            require(
                (self.scope, self.unmapped) == ("sequence", "include"),
                f"guidance.method: {self.method}: tokens without a teacher loss train as they are, "
                "and nothing is ranked; omit guidance.scope and guidance.unmapped",
            )
        if self.method == "chunk":
            require(
                self.top_fraction is not None,
                "guidance.top_fraction: null is for guidance.method vocagno and rho1",
            )
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
        return self.is_own or self.method in ("vocagno", "rho1", "chunk")

    @property
    def is_own(self) -> bool:
        """Whether the method is a rule outside the package, which `method_of` imports."""
        return ":" in self.method

    @property
    def is_matching(self) -> bool:
        """Whether all tokens train, towards what the teacher says of them."""
        return self.method in _BY_GROUP

    @property
    def can_show_text(self) -> bool:
        """Whether `vocagno guidance` shows what it makes of a text."""
        return self.method in ("vocagno", *_BY_GROUP)

    @property
    def is_explained(self) -> bool:
        """Whether pictures say why a token trains, not only whether it does."""
        return self.method in (*_RANKING, "chunk", *_BY_GROUP)

    @property
    def has_quota_alone(self) -> bool:
        """Whether the units with the largest excess losses are kept, as many as a quota says."""
        return self.keeps_quota or self.method == "chunk"

    @property
    def keeps_quota(self) -> bool:
        """Whether exactly `top_fraction` of the competing tokens are kept, with weight 1 (Eq. 4):
        then their number is known before the forward pass."""
        return (
            self.method in _RANKING
            and self.unit == "token"
            and self.max_threshold is None
            and self.window is None
        )

    @property
    def has_no_threshold(self) -> bool:
        """Whether a unit is kept whatever its excess loss is, unless it is noise."""
        return self.top_fraction is None and self.max_threshold is None

    @property
    def threshold_without_quota(self) -> float:
        """The threshold where `top_fraction` is null: minus infinity if there is none."""
        return -math.inf if self.max_threshold is None else self.max_threshold

    @property
    def has_fixed_threshold(self) -> bool:
        """Whether the weight of a unit depends on no student losses but its own."""
        return self.method in (*_RANKING, *_BY_GROUP) and self.top_fraction is None

    @property
    def needs_groups(self) -> bool:
        """Whether the loss has to know which tokens are a group."""
        return self.method == "alm" or (self.unit == "group" and not self.has_no_threshold)

    @property
    def needs_candidates(self) -> bool:
        return self.method == "distill"

    @property
    def moves_towards_teacher(self) -> bool:
        """Whether the student learns what the teacher says of each token, and not only which tokens
        are worth learning."""
        return self.method in _BY_GROUP

    @property
    def needs_entropy(self) -> bool:
        """Whether the candidates need the entropy of the distribution that they are of."""
        return self.needs_candidates and self.distill_where == "surer"

    @property
    def needs_group_loss(self) -> bool:
        """Whether noise is told by other losses than those of single tokens, which count a teacher
        token once for each student token that shares text with it."""
        is_token = (self.is_own or self.method == "vocagno") and self.unit == "token"
        return is_token and self.window_max_loss is not None

    @property
    def needs_teacher(self) -> bool:
        """Whether the method has one at all."""
        return self.method != "cpt" and self.selection != "random"

    @property
    def needs_distributions(self) -> bool:
        return self.method in ("kld", "uld")

    @property
    def needs_live_teacher(self) -> bool:
        """Whether stored losses cannot tell what the method has to know."""
        return self.needs_distributions or self.criterion == "excess_and_entropy"

    @property
    def needs_same_vocabulary(self) -> bool:
        """Whether the teacher's ids must be the student's."""
        return self.method in ("rho1", "kld")

    @property
    def weight_of_distance(self) -> float | None:
        """What a distance is multiplied by, or the teacher's share; None for other methods."""
        if self.distillation_weight is not None:
            return self.distillation_weight
        return _USUAL_WEIGHT.get(self.method)


PAPERS_RULE = GuidanceConfig(top_fraction=_PAPERS_QUOTA)


def _listed(methods: tuple[Method, ...]) -> str:
    *others, last = (method for method in methods if method != "cpt")
    return f"{', '.join(others)} and {last}" if others else last


def as_naive(guidance: GuidanceConfig) -> GuidanceConfig:
    """Naive training that otherwise counts and divides alike."""
    kept: dict[str, Any] = {"normalize": guidance.normalize, "min_coverage": guidance.min_coverage}
    return GuidanceConfig(method="cpt", **kept)

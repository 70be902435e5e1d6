"""Options of guidance: the method by which the teacher changes what the student learns, the rule
that chooses tokens, and properties that tell other modules what a method needs."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from vocagno.alignment.mapping import Reduction
from vocagno.config.option_types import check_types
from vocagno.errors import ConfigError, require, require_at_least

MethodName = Literal["vocagno", "rho1", "chunk", "alm", "distill", "kld", "uld", "cpt"]

_TOKEN_SELECTIONS: tuple[MethodName, ...] = ("vocagno", "rho1")
_OR_NAIVE: tuple[MethodName, ...] = (*_TOKEN_SELECTIONS, "cpt")
"""The options of a guided run may stay when `method: cpt` makes it naive, to compare the two."""
_BY_GROUP: tuple[MethodName, ...] = ("alm", "distill")
"""Methods that train on all tokens, towards the teacher."""
_SELECTING: tuple[MethodName, ...] = (*_OR_NAIVE, "chunk")
"""Methods that train on some of the tokens, and cpt."""
_OPTIONS_OF: dict[str, tuple[MethodName, ...]] = {
    "aggregation": _SELECTING,
    "unmapped": _SELECTING,
    "scope": _SELECTING,
    "top_fraction": _SELECTING,
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
"""The methods that an option is for; to others it says nothing, and they refuse it."""

_DEFAULT_WEIGHT: dict[str, float] = {"kld": 1.0, "uld": 0.5, "alm": 0.5, "distill": 0.5}
"""Default of `distillation_weight`."""
_PAPERS_QUOTA = 0.4
"""The share of tokens that the paper keeps, its "top-k 40%"."""
_MAX_LOSS_OF_LINES = 2.0
"""The limit of the default rule, in nats a byte: the default of `window_max_loss`."""
SMOOTHING_BYTES = 8
"""Added to the rest of a token's line, at 1 nat each, so that a few hard tokens do not make a short
line noise."""


@dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """Options of what the student learns from the teacher (arXiv 2503.19123, Eq. 2 to 6).

    vocagno, rho1 and chunk choose the tokens that train, each by another mapping; alm and distill
    train towards the teacher's losses and most likely tokens, from a store, with any vocabulary;
    kld and uld add a distance between the distributions of both models; cpt is naive training.

    Under vocagno these options make a rule:

    - none of those below: the default. All tokens train but those the rest of whose line is noise
      to the teacher (`unit: group`, `window_max_loss: 2.0`; docs/guidance.md).
    - `top_fraction: 0.4`: the paper's rule. A share of the tokens trains, those with the largest
      excess losses.
    - `max_threshold`: the tokens whose excess loss reaches a number that is known beforehand. Next
      to a quota, the smaller of both thresholds counts.
    - `window_max_loss` next to these drops noise, too, whatever its excess loss is.

    A token *competes* if the rule decides about it; `unmapped` says which tokens without a teacher
    loss do.
    """

    method: MethodName | str = "vocagno"
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
    """The unit on which both models are compared. token: a student token and the teacher tokens
    that share text with it (Eq. 2). group: the smallest runs of both sides that cover the same text
    (`vocagno.groups`); the excess loss of a group is the sum of the student's losses minus the sum
    of the teacher's, divided by its student tokens. null: group where no rule is named, else
    token. alm and distill: group."""
    top_fraction: float | None = None
    """Quota: share of the competing tokens (or chunks) that is kept in each scope, in (0, 1] (Eq.
    4; the paper takes 0.4). Their smallest excess loss is the threshold. null: no quota; the
    threshold is `max_threshold`, or no unit is dropped for its own excess loss; for rho1 and chunk
    0.4, if nothing else is named."""
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
    nats a byte; default 2 where no rule is named, none for alm and distill. The rest is the line
    without the unit's whole group, also for `unit: token`, so that each token of the teacher counts
    once. The mean is smoothed: 8 bytes of 1 nat each are added to the rest of the line, so a limit
    below 1 drops short lines that the teacher predicts well, too."""
    aggregation: Reduction = "max"
    """The function that makes one loss of those of several teacher tokens (Eq. 2)."""
    unmapped: Literal["include", "exclude", "mean"] = "include"
    """What becomes of tokens without a teacher loss: special ones, those that the teacher was not
    asked for, and those of a group that has none. include: all are kept, next to the quota.
    exclude: none is. mean: they compete; a rule that ranks gives them the mean loss of the
    teacher's own tokens in the scope, and under the rule of lines their line decides."""
    scope: Literal["sequence", "micro_batch"] = "sequence"
    """The tokens that are ranked together. sequence: those of a row. micro_batch: those of all rows
    of a micro-batch."""
    normalize: Literal["tokens", "selected"] = "tokens"
    """Denominator of the loss of a step. tokens: all predicted tokens (Eq. 3). selected: the kept
    ones."""
    min_coverage: float = 0.99
    """The run stops if less of the tokens with text is mapped, or has a teacher loss."""
    criterion: Literal["excess", "excess_and_entropy"] = "excess"
    """rho1: what ranks a token. excess: its excess loss. excess_and_entropy: the worse of its two
    places in the order of excess losses (largest first) and in that of the entropies of the
    teacher's distributions (smallest first); it needs a live teacher."""
    chunks: int = 32
    """chunk: chunks of a row; each side is cut at boundaries `i * tokens // chunks`."""
    selection: Literal["teacher", "random"] = "teacher"
    """chunk: how chunks are chosen. teacher: by excess loss. random: at random, which needs no
    teacher."""
    divergence: Literal["reverse", "forward"] = "reverse"
    """kld: reverse: KL(student || teacher), as Eq. 5; forward: KL(teacher || student)."""
    pairing: Literal["positional", "aligned"] = "positional"
    """uld: which teacher token a student token is compared with. positional: the k-th of a
    document's part of a row with the teacher's k-th, as published. aligned: with the first one that
    it shares text with."""
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
            self.is_own_rule or self.method in get_args(MethodName),
            f"guidance.method: expected one of {', '.join(get_args(MethodName))}, or MODULE:CLASS "
            f"for a rule of your own, got {self.method!r}",
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
        require(
            self.window_max_loss is None or self.window_max_loss > 0,
            f"guidance.window_max_loss must be above 0 nats a byte, got {self.window_max_loss}",
        )
        require_at_least(1, "guidance", self, "chunks")
        require_at_least(0, "guidance", self, "distillation_weight")
        require(
            self.method not in _BY_GROUP or (self.distillation_weight or 0) <= 1,
            f"guidance.distillation_weight: must be at most 1 (the teacher's share) for "
            f"guidance.method: {self.method}, got {self.distillation_weight}",
        )
        # `_set_defaults` has replaced a null unit, so its declared default is no longer seen here.
        defaults = {field.name: field.default for field in fields(self)} | {"unit": "token"}
        method = "vocagno" if self.is_own_rule else self.method
        for name, methods in _OPTIONS_OF.items():
            # kld and uld ignore the quota of the configuration that a run varies; `warning` tells.
            is_ignored = name == "top_fraction" and self.needs_distributions
            if getattr(self, name) != defaults[name] and method not in methods and not is_ignored:
                raise ConfigError(
                    f"guidance.{name}: is for guidance.method {_in_words(methods)}, not "
                    f"{self.method}; omit it"
                )
        self._check_combinations()

    def _set_defaults(self) -> None:
        """Replaces null where it stands for another value."""
        values: dict[str, Any] = {}
        # Without a rule of its own, a run has the default one: by group, without noisy lines.
        if (self.top_fraction, self.max_threshold, self.window) == (None, None, None):
            if self.method == "vocagno":
                values["unit"] = self.unit or "group"
                if self.window_max_loss is None:
                    values["window_max_loss"] = _MAX_LOSS_OF_LINES
            elif self.method in ("rho1", "chunk") and self.window_max_loss is None:
                values["top_fraction"] = _PAPERS_QUOTA
        if self.is_own_rule and self.top_fraction is None:
            values["top_fraction"] = _PAPERS_QUOTA
        if values.get("window_max_loss", self.window_max_loss) is not None:
            values["window"] = "line"
        if self.method in _BY_GROUP:
            require(
                self.unit != "token",
                f"guidance.unit: token: guidance.method: {self.method} has groups; omit it",
            )
            values["unit"] = "group"
        for name, value in {"unit": self.unit or "token", **values}.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def _check_combinations(self) -> None:
        """Raises: ConfigError for options that contradict each other under this method."""
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
        """True if some tokens train and others do not."""
        return self.is_own_rule or self.method in ("vocagno", "rho1", "chunk")

    @property
    def is_own_rule(self) -> bool:
        """True if the method is a rule outside the package, which `method_of` imports."""
        return ":" in self.method

    @property
    def is_matching(self) -> bool:
        """True if all tokens train, towards the teacher's loss or distribution at each of them."""
        return self.method in _BY_GROUP

    @property
    def can_show_text(self) -> bool:
        """True if `vocagno guidance` can show what the method makes of a text."""
        return self.method in ("vocagno", *_BY_GROUP)

    @property
    def is_explained(self) -> bool:
        """True if pictures say why a token trains, not only whether it does."""
        return self.method in (*_TOKEN_SELECTIONS, "chunk", *_BY_GROUP)

    @property
    def keeps_quota_of_units(self) -> bool:
        """True if the units with the largest excess losses are kept, as many as a quota says."""
        return self.keeps_quota or self.method == "chunk"

    @property
    def keeps_quota(self) -> bool:
        """True if exactly `top_fraction` of the competing tokens are kept, with weight 1 (Eq. 4).
        Their number is then known before the forward pass."""
        return (
            self.method in _TOKEN_SELECTIONS
            and self.unit == "token"
            and self.max_threshold is None
            and not self.has_line_rule
        )

    @property
    def has_line_rule(self) -> bool:
        """True if units on lines that are noise to the teacher are dropped (`window_max_loss`)."""
        return self.window is not None

    @property
    def ignores_excess(self) -> bool:
        """True if no excess loss decides, as under the default rule, and where all tokens train: a
        unit is kept, unless its line is noise."""
        return self.top_fraction is None and self.max_threshold is None

    @property
    def threshold_without_quota(self) -> float:
        """The threshold where `top_fraction` is null; minus infinity if there is none."""
        return -math.inf if self.max_threshold is None else self.max_threshold

    @property
    def takes_one_pass(self) -> bool:
        """True if the weight of a unit needs no student losses but its own, so that each logit is
        computed once: where a threshold is known beforehand, or there is none."""
        return self.method in (*_TOKEN_SELECTIONS, *_BY_GROUP) and self.top_fraction is None

    @property
    def needs_groups(self) -> bool:
        """True if the loss has to know which tokens are a group."""
        return self.method == "alm" or (self.unit == "group" and not self.ignores_excess)

    @property
    def needs_candidates(self) -> bool:
        """True if the teacher's scores need the likeliest ids of each token."""
        return self.method == "distill"

    @property
    def needs_entropy(self) -> bool:
        """True if the candidates need the entropy of the distribution that they are from."""
        return self.needs_candidates and self.distill_where == "surer"

    @property
    def needs_group_loss(self) -> bool:
        """True if noise is judged by the losses of groups, although the unit is a token: a loss by
        token counts a teacher token once for each student token that shares text with it."""
        is_token = (self.is_own_rule or self.method == "vocagno") and self.unit == "token"
        return is_token and self.window_max_loss is not None

    @property
    def warning(self) -> str | None:
        """Warns of a limit below the smoothing's 1 nat a byte, and of a quota that the method does
        not have; None if there is neither, or no line is judged (`cpt`)."""
        if self.needs_distributions and self.top_fraction is not None:
            return f"guidance.top_fraction: guidance.method: {self.method} trains on all tokens"
        limit = self.window_max_loss
        return None if limit is None or not self.needs_teacher else low_limit_warning(limit)

    @property
    def needs_teacher(self) -> bool:
        """True if the method has a teacher at all."""
        return self.method != "cpt" and self.selection != "random"

    @property
    def needs_distributions(self) -> bool:
        """True if the method compares whole distributions over the vocabulary."""
        return self.method in ("kld", "uld")

    @property
    def needs_live_teacher(self) -> bool:
        """True if the method needs more of the teacher than its stored losses."""
        return self.needs_distributions or self.criterion == "excess_and_entropy"

    @property
    def needs_same_vocabulary(self) -> bool:
        """True if the teacher's ids must be the student's."""
        return self.method in ("rho1", "kld")

    @property
    def weight_of_distance(self) -> float | None:
        """The factor of the distance, or the teacher's share of the loss; None for methods that
        have neither."""
        if self.distillation_weight is not None:
            return self.distillation_weight
        return _DEFAULT_WEIGHT.get(self.method)


PAPERS_RULE = GuidanceConfig(top_fraction=_PAPERS_QUOTA)
"""The rule of the paper: the 40 % of the tokens with the largest excess losses."""


def low_limit_warning(limit: float, unit: str = "line") -> str | None:
    """Warns of a limit in nats a byte that is below the smoothing's; None for other limits.

    Args: unit: what is judged as a whole, a line or a document.
    """
    if limit >= 1:
        return None
    return (
        f"window_max_loss: {limit:g} is below 1 nat a byte, so it drops short {unit}s that "
        f"the teacher predicts well, too ({SMOOTHING_BYTES} bytes of 1 nat each are added to a "
        f"{unit}); `vocagno limit` finds a limit"
    )


def _in_words(methods: tuple[MethodName, ...]) -> str:
    """Lists methods in a sentence, without cpt, for which no option is meant."""
    *first_ones, last = (method for method in methods if method != "cpt")
    return f"{', '.join(first_ones)} and {last}" if first_ones else last


def as_naive(guidance: GuidanceConfig) -> GuidanceConfig:
    """Makes naive training of a guided run, with the same denominator and bound of coverage."""
    return GuidanceConfig(
        method="cpt", normalize=guidance.normalize, min_coverage=guidance.min_coverage
    )

"""The inputs of a method: both sides of a training step, counts, sums of losses. A loop checks
their guidance with functions of this module, and the share of the text that the teacher covers."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.models.head import ChunkEnds, Head
from vocagno.models.losses import TeacherStates


@dataclass(frozen=True, kw_only=True)
class GuidanceTensors:
    """The columns of a batch, made by the collator and a live teacher, that a method reads next to
    the student's states.

    B: rows, T: predicted tokens of a row, N = B * T, C: chunks of a row, R: teachers, S: columns
    for buckets at a token. A field with a value for each token has it at the position that predicts
    the token, and `padding` where there is none. A batch (a dict) has the fields by these names.
    """

    teacher_loss: Tensor = field(metadata={"padding": math.nan})
    """(B, T) float32: the teacher's loss in nats, L_T of Eq. 2 (arXiv 2503.19123); NaN for none."""
    weight: Tensor | None = field(default=None, metadata={"padding": 0.0})
    """(B, T) float32, for rules with `window_max_loss`: 0.0 for noise, else 1.0, or a baked share
    (`rules.known_weights`)."""
    groups: Tensor | None = field(default=None, metadata={"padding": -1})
    """(B, T) int64, for `unit: group` with a threshold: the number of each token's group, -1 for
    none. Two groups in succession have different numbers, across the ends of rows, too."""
    chunks: Tensor | None = field(default=None, metadata={"padding": -1})
    """(B, T) int64, for `method: chunk`: the number of each token's chunk, -1 at padding."""
    entropy: Tensor | None = None
    """(B, T) the entropy of the teacher's distribution for each token, nats; for `criterion:
    excess_and_entropy`."""
    candidates: Tensor | None = field(default=None, metadata={"padding": -1})
    """(B, T, S) int32, for `method: distill`: the numbers of the teacher's buckets, -1 for none
    (`bucket_targets.Targets`)."""
    candidate_mass: Tensor | None = field(default=None, metadata={"padding": 0.0})
    """(B, T, S) float32: the teacher's probabilities of these buckets."""
    candidate_entropy: Tensor | None = field(default=None, metadata={"padding": math.nan})
    """(B, T, R) float32, nats, for `distill_where: surer`: the entropy of the whole distribution of
    each of R teachers, NaN where it is not known."""
    buckets: BucketTable | None = None
    """The student's ids in each bucket."""
    bucket_key: str | None = None
    """`BucketTable.key` of the buckets that the candidates are numbered by."""
    members_before: Any = None
    """(N + 1,) on the host: the number of ids in the buckets of all tokens before each one. Without
    it the host waits for the device, if that is not the CPU."""
    chunk_rank: Tensor | None = None
    """(B, C) random numbers that rank chunks instead of their excess loss; for `selection: random`.
    """
    teacher_sums: Tensor | None = None
    """(B, 2) sum and count of the losses of the teacher's own tokens in each row, for `unmapped:
    mean`. Without it, that mean is of the aggregated losses, which under `max` is higher and counts
    long teacher tokens often."""
    teacher: TeacherStates | None = None
    """The teacher's distributions, for `kld` and `uld`."""
    chunk_ends: ChunkEnds = None
    """The positions on the host at which a batch can be cut without splitting a group
    (`safe_cuts`). Without it the host waits for the device, if that is not the CPU."""
    num_kept: int | None = None
    """The number of tokens that are kept at most, so that the host need not wait for the device."""
    guidance: GuidanceConfig | None = None
    """The guidance that the columns were made for. `selective_cross_entropy` compares it with its
    own."""

    @classmethod
    def of(cls, batch: Mapping[str, Any], **values: Any) -> "GuidanceTensors":
        """Takes the fields that a batch has by their names; `values` are further fields."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in batch.items() if name in names}, **values)

    def check(self, labels_BT: Tensor, guidance: GuidanceConfig) -> None:
        """Checks the columns against the labels and the guidance.

        Raises: ValueError for a column whose shape is not that of the labels, (B, T), for weights
            that are no shares (their values only on a CPU), and for weights and candidates that the
            method would not read; naive training reads nothing.
        """
        weight = self.weight
        if weight is not None:
            is_share = weight.is_floating_point()
            if is_share and weight.device.type == "cpu":
                is_share = bool(((weight >= 0) & (weight <= 1)).all())
            if not is_share:
                raise ValueError(
                    f"weight: expected floats from 0 to 1, got {weight.dtype} of up to "
                    f"{float(weight.max()):g}; divide baked ones by 255"
                )
        for name in PADDING:
            value = getattr(self, name)
            if value is not None and value.shape[: labels_BT.ndim] != labels_BT.shape:
                raise ValueError(
                    f"{name} {tuple(value.shape)}: expected the shape of the labels, "
                    f"{tuple(labels_BT.shape)}; cut all tensors of a batch alike"
                )
        before = self.members_before
        if before is not None and len(before) != labels_BT.numel() + 1:
            raise ValueError(
                f"members_before: counted for {len(before) - 1} tokens, but there are "
                f"{labels_BT.numel()} labels; omit it where a batch is cut"
            )
        # A column that nothing reads would be a rule that has no effect, without a word.
        unread = {
            "weight": guidance.window is None and "guidance.window_max_loss",
            "candidates": not guidance.needs_candidates and "guidance.method: distill",
        }
        for name, option in unread.items():
            if option and guidance.needs_teacher and getattr(self, name) is not None:
                raise ValueError(f"{name}: only `{option}` reads it; set that, or omit {name}")

    def to(self, device: torch.device) -> "GuidanceTensors":
        """Copies the tensors to a device; what the host needs stays there."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


PADDING: dict[str, float] = {
    field.name: field.metadata["padding"]
    for field in fields(GuidanceTensors)
    if "padding" in field.metadata
}
"""The fields with a value for each token, and the value that stands for none."""


class StudentSide(NamedTuple):
    """The student's side of a training step."""

    hidden_BTH: Tensor
    """Last hidden states; state i predicts `labels_BT[:, i]`."""
    head: Head
    labels_BT: Tensor
    """Target ids, -100 where nothing is predicted."""

    @property
    def flat_hidden(self) -> Tensor:
        """The states of all rows (N, H)."""
        return self.hidden_BTH.flatten(0, -2)


class TokenCounts(NamedTuple):
    """Counts of the predicted tokens of a batch. Tokens of documents without scores are counted in
    `missing`, and otherwise only in the first four."""

    predicted: int = 0
    kept: int = 0
    """Tokens that are kept, or can be at most: the student's losses decide between chunks, and a
    rule of lines waits for the losses of a live teacher."""
    competing: int = 0
    included: int = 0
    """Kept without competing."""
    with_text: int = 0
    mapped: int = 0
    """Mapped to a teacher token, with or without a loss."""
    scorable: int = 0
    """With text, and not mapped only to the first teacher token of a document."""
    scored: int = 0
    """Scorable, mapped, with a teacher loss."""
    special: int = 0
    truncated: int = 0
    hole: int = 0
    unscored: int = 0
    missing: int = 0
    partial: int = 0
    """Mapped, but a teacher loss is missing in their group."""

    def tensor(self) -> Tensor:
        """(14,) int64, to be added up over processes."""
        return torch.tensor(self)

    def plus(self, other: "TokenCounts") -> "TokenCounts":
        """Adds other counts to these."""
        return TokenCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def shares(self) -> dict[str, float]:
        """Two shares: `coverage`, of the tokens with text those that are mapped; and `scored`, of
        the scorable ones those with a teacher loss. A share of no tokens is absent."""
        parts = {"coverage": (self.mapped, self.with_text), "scored": (self.scored, self.scorable)}
        return {name: part / whole for name, (part, whole) in parts.items() if whole}


REASONS = ("special", "truncated", "hole", "unscored", "missing", "partial")
"""The counts that say why tokens have no teacher loss."""


class LossSums(NamedTuple):
    """Sums over tokens: tensors in a forward pass, floats for a window of steps."""

    nll: Any = 0.0
    """The student's losses on all predicted tokens."""
    kept_nll: Any = 0.0
    """The student's losses on the tokens that are trained on, times their weights."""
    excess: Any = 0.0
    """Excess losses of the tokens with a teacher loss."""
    teacher: Any = 0.0
    """The teacher's losses on these tokens."""
    ranked: Any = 0.0
    """The number of these tokens."""
    kept: Any = 0.0
    """The number of tokens that are trained on."""
    distance: Any = 0.0
    """Distances of distillation; for `distill` H(P, Q)."""
    pairs: Any = 0.0
    """The number of tokens that have a distance."""
    threshold: Any = 0.0
    """Thresholds of the scopes in which tokens competed."""
    scopes: Any = 0.0
    """The number of these scopes."""

    @classmethod
    def of(cls, sums: Tensor) -> "LossSums":
        """Reads the sums as floats from the tensor (10,) on the host."""
        return cls(*sums.tolist())

    def tensor(self) -> Tensor:
        """(10,) float64 on the device of `nll`, to be added up over processes."""
        assert isinstance(self.nll, Tensor)
        nothing = torch.zeros_like(self.nll)
        parts = (value if isinstance(value, Tensor) else nothing + value for value in self)
        return torch.stack([part.to(nothing) for part in parts]).double()


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Facts about a batch that stay on the host."""

    guidance: GuidanceConfig
    """The guidance that the batch was made for."""
    counts: TokenCounts
    student: str | None = None
    """`TokenSpans.fingerprint` of the tokenizer of its ids, if it is known."""


def check_guidance(made: GuidanceConfig, used: GuidanceConfig, where: str) -> None:
    """Compares the guidance that a batch was made for with that of the loss.
    Raises: ConfigError that names the options that differ."""
    if made != used:
        raise ConfigError(
            f"{where}: made for {_differences(asdict(made), asdict(used))}; give both the same "
            "guidance"
        )


def made_for(guidance: GuidanceConfig, student: str, table: BucketTable | None = None) -> str:
    """Writes as JSON what the columns of a data set depend on: some options, the fingerprint of the
    student's tokenizer, and the key of the buckets."""
    buckets = {} if table is None else {"buckets": table.key}
    return json.dumps(_column_options(guidance) | {"student": student} | buckets)


def check_columns(made: str, guidance: GuidanceConfig, table: BucketTable | None = None) -> str:
    """Compares what `made_for` wrote for some columns with the guidance and buckets of their use.

    Returns: the fingerprint of the student's tokenizer.
    Raises: ConfigError that names the options that differ.
    """
    options = json.loads(made)
    student: str = options.pop("student")
    options.pop("distill_where", None)  # of 0.1.0: it says nothing about columns
    if options.pop("buckets", None) != (None if table is None else table.key):
        raise ConfigError("columns of other buckets than `targets`; give both the same")
    if options != (needed := _column_options(guidance)):
        raise ConfigError(
            f"columns of another guidance: made for {_differences(options, needed)}; make them by "
            "add_teacher_loss with this guidance"
        )
    return student


def check_coverage(counts: TokenCounts, guidance: GuidanceConfig, where: str = "") -> None:
    """Stops a loop whose teacher covers too little of the text. The host does not wait for a
    device.

    Args:
        counts: of some batches, added up over all processes: `GuidedBatch.counts`, or
            `batch["facts"].counts` of the collators. Tokens of documents without scores count only
            if there are no others.
        where: for the message.
    Raises: GuidanceError below `guidance.min_coverage`, saying which reason dominates.
    """
    if not guidance.needs_teacher:
        return
    where = f"{where}: " if where else ""
    if counts.missing and not counts.with_text:
        raise GuidanceError(
            f"{where}no text of these {counts.missing:,} tokens has scores: the scores are of "
            "another corpus (run `vocagno score` on this one), or the teacher's tokenizer cannot "
            "read this one"
        )
    for name, verb, possible in (
        ("coverage", "map to the teacher", ("truncated", "hole")),
        ("scored", "have a teacher loss", ("truncated", "hole", "unscored")),
    ):
        share = counts.shares.get(name, 1.0)
        if share < guidance.min_coverage:
            # The largest count is the cause to fix first; the reasons need different remedies.
            worst = max(possible, key=lambda reason: getattr(counts, reason))
            raise GuidanceError(
                f"{where}only {share:.2%} of the tokens {verb} (guidance.min_coverage: "
                f"{guidance.min_coverage:.2%}). Main cause: {worst} ({getattr(counts, worst)} "
                "tokens). Without a teacher loss these tokens train as in naive pretraining: check "
                "the spans of both tokenizers, or lower the limit."
            )


def _column_options(guidance: GuidanceConfig) -> dict[str, Any]:
    """The options that the columns of a data set depend on."""
    names = "method", "unit", "aggregation", "chunks", "window_max_loss"
    # Losses do not depend on `unmapped`; the weights of a rule of lines do.
    unmapped = guidance.unmapped if guidance.window else None
    return {name: getattr(guidance, name) for name in names} | {"unmapped": unmapped}


def _differences(made: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """Lists the options that differ, for a message. An absent one differs from one that is None."""
    return ", ".join(
        f"guidance.{name} {made.get(name)}, not {used.get(name)}"
        for name in {**made, **used}
        if (name in made, made.get(name)) != (name in used, used.get(name))
    )

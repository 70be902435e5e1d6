"""One batch, from the collator to the loss: the columns of its tokens, and their counts. Functions
of this module check that a batch fits the guidance of a loop, and how much a teacher covers.

B: rows, T: predicted tokens of a row, N = B * T, C: chunks of a row, R: teachers, S: columns for
buckets at a token.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.alignment.mapping import Reason
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.models.batching import isolation
from vocagno.models.head import ChunkEnds
from vocagno.models.losses import IGNORED, TeacherStates

if TYPE_CHECKING:  # a live teacher needs pyarrow, the loss does not
    from vocagno.teacher.live import LiveText
    from vocagno.teacher.scorer import Pass

Side = Literal["loss", "host"]


def column(
    default: Any = None,
    *,
    padding: float | None = None,
    side: Side = "loss",
    needed: Callable[[GuidanceConfig], bool] | None = None,
) -> Any:
    """Declares a column of `GuidedBatch`. What moves, pads, stores or checks columns reads this, so
    that a new one is declared here, filled by the collator, and read by a method.

    Args:
        padding: the value where there is none, of the type that the column has in data sets: 0.0,
            not 0, for floats. A column with a padding has a value for each token, at the position
            that predicts the token.
        side: `loss` for what the student's forward pass takes, and `host` for what stays there.
        needed: tells under which guidance examples of a data set need the column to train.
    """
    return field(default=default, metadata={"padding": padding, "side": side, "needed": needed})


class TokenCounts(NamedTuple):
    """Counts of the predicted tokens of a batch. Tokens of documents without scores are counted in
    `missing`, else only in `predicted`, `kept`, `competing` and `included`."""

    predicted: int = 0
    kept: int = 0
    """Tokens that are kept, or the most that can be: the student's losses decide about thresholds,
    quotas of groups and chunks, and a rule of lines waits for the losses of a live teacher."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class GuidedBatch:
    """One micro-batch, from the collator to the loss.

    The collator makes it on the host. `inputs` are the columns that the student's forward pass
    takes, by their names; wrappers such as DDP and FSDP hook that call. All tensors are contiguous,
    so that a device fetches them without waiting for a copy in pageable memory.
    """

    input_ids: Tensor | None = column(padding=0)
    """(B, T) int64."""
    labels: Tensor | None = column(padding=IGNORED)
    """(B, T) int64: the id that follows each input; -100 where nothing is predicted."""
    teacher_loss: Tensor = column(MISSING, padding=math.nan)
    """(B, T) float32: the teacher's loss in nats, L_T of Eq. 2 (arXiv 2503.19123); NaN for none. It
    is 0 for a live teacher's tokens until the teacher has read them."""
    weight: Tensor | None = column(padding=0.0, needed=lambda rule: rule.has_line_rule)
    """(B, T) float32, for rules with `window_max_loss`: 1.0 for tokens that train by the rule
    of lines, 0.0 for the others (`line_rule.weights_of_lines`); or a share from a baked file
    (docs/loop.md)."""
    groups: Tensor | None = column(padding=-1, needed=lambda rule: rule.needs_groups)
    """(B, T) int64, for `unit: group` with a threshold: the number of each token's group, -1 for
    none. Two groups in succession have different numbers, across the ends of rows, too."""
    chunks: Tensor | None = column(padding=-1)
    """(B, T) int64, for `method: chunk`: the number of each token's chunk, -1 at padding."""
    entropy: Tensor | None = column()
    """(B, T) the entropy of the teacher's distribution for each token, nats; for `criterion:
    excess_and_entropy`."""
    candidates: Tensor | None = column(padding=-1, needed=lambda rule: rule.needs_candidates)
    """(B, T, S) int32, for `method: distill`: the numbers of the teacher's buckets, -1 for none
    (`bucket_targets.Targets`)."""
    candidate_mass: Tensor | None = column(padding=0.0, needed=lambda rule: rule.needs_candidates)
    """(B, T, S) float32: the teacher's probabilities of these buckets."""
    candidate_entropy: Tensor | None = column(
        padding=math.nan, needed=lambda rule: rule.needs_entropy
    )
    """(B, T, R) float32, nats, for `distill_where: surer`: the entropy of the whole distribution of
    each of R teachers, NaN where it is not known."""
    chunk_rank: Tensor | None = column()
    """(B, C) random numbers that rank chunks instead of their excess loss; for `selection: random`.
    """
    teacher_sums: Tensor | None = column(needed=lambda rule: rule.unmapped == "mean")
    """(B, 2) sum and count of the losses of the teacher's own tokens in each row, for `unmapped:
    mean`. Without it, that mean is of the aggregated losses, which under `max` is higher and counts
    long teacher tokens often."""
    teacher_states: TeacherStates | None = column()
    """The teacher's distributions, for `kld` and `uld`."""
    attention_mask: Tensor | None = column()
    """The mask that keeps isolated documents apart; made on the device (`to`)."""
    position_ids: Tensor | None = column()
    """(B, T) positions that begin again in each document, if these are isolated."""
    piece: Tensor | None = column()
    """(B, T) int32, if documents are isolated: the number of each token's document in its row, -1
    at padding. `to` makes mask and positions from it: it is 8 KB a row of 2,048 tokens, the mask
    4 MB."""
    chunk_ends: ChunkEnds = column()
    """The positions on the host at which the logits can be cut into chunks without splitting a
    group (`safe_cuts`); not the chunks of `method: chunk`. Without it the host waits for the
    device, if that is not the CPU."""
    members_before: Any = column()
    """(N + 1,) on the host: the number of ids in the buckets of all tokens before each one. Without
    it the host waits for the device, if that is not the CPU."""
    bucket_key: str | None = column()
    """`BucketTable.key` of the buckets that the candidates are numbered by."""
    buckets: BucketTable | None = column()
    """The student's ids in each bucket."""
    num_kept: int | None = column()
    """The number of tokens that are kept at most, so that the host need not wait for the device."""
    guidance: GuidanceConfig | None = column()
    """The guidance that the columns were made for. `selective_cross_entropy` compares it with its
    own."""
    line: Tensor | None = column(side="host")
    """(B, T) int64, for `window_max_loss`, like `line_bytes`, `line_groups` and `group_loss`: the
    number of each token's line of text, -1 for a token in no line."""
    line_bytes: Tensor | None = column(padding=0, side="host")
    """(B, T) the bytes of text that each token covers."""
    line_groups: Tensor | None = column(padding=-1, side="host")
    """(B, T) int64: the number of each token's group, whose own loss is not counted when its line
    judges it; -1 for none, and the column is None if each token is a unit. `groups` has it, too, if
    the loss needs it."""
    group_loss: Tensor | None = column(padding=math.nan, side="host")
    """(B, T) the teacher's loss on the whole group of each token divided by the group's student
    tokens, in nats; NaN for none. It is there if `teacher_loss` is of single tokens
    (`GuidanceConfig.needs_group_loss`)."""
    reasons: Tensor | None = column(padding=Reason.SPECIAL, side="host")
    """(B, T) uint8: why a token has no teacher loss (`Reason`), which the counts have added up."""
    live_text: "LiveText | None" = column(side="host")
    """Text for a live teacher."""
    passes: "Sequence[Pass]" = column((), side="host")
    """The forward passes of a live teacher for these rows; empty without one."""
    counts: TokenCounts = column(TokenCounts(), side="host")
    """The counts of all rows, which `check_coverage` takes, added up over batches."""
    row_counts: NDArray[np.int64] | None = column(side="host")
    """(B, 14) the counts of each row, in the order of `TokenCounts`. `kept` is 0: only the number
    for the whole batch is known."""
    text_bytes: int = column(0, side="host")
    """Bytes of text that the predicted tokens cover, counted where there is no teacher."""

    @classmethod
    def of_tokens(
        cls, values: Mapping[str, NDArray[Any] | Tensor], places_BT: Tensor, **columns: Any
    ) -> "GuidedBatch":
        """Makes a batch of columns with a value for each of n tokens, which it puts at the
        positions that predict these. Here columns cross from NumPy to torch.

        Args:
            values: (n, ...) of columns with a padding, by their names.
            places_BT: the number of the token that is predicted at each position; -1 at padding.
            columns: further columns, which are (B, T) already, or not of tokens.
        """
        placed: dict[str, Any] = {
            name: put(values[name], places_BT, PADDING[name]) for name in values
        }
        return cls(**placed, **columns)

    def __iter__(self) -> Any:
        """Unpacks into ids, labels, batch and counts. The third is the batch itself, which is
        what `selective_cross_entropy` takes."""
        return iter((self.input_ids, self.labels, self, self.counts))

    @property
    def input_ids_BT(self) -> Tensor:  # noqa: N802 - it ends in its shape
        """`input_ids`, which a collator always gives."""
        assert self.input_ids is not None
        return self.input_ids

    @property
    def labels_BT(self) -> Tensor:  # noqa: N802
        """`labels`, which a loss always has."""
        assert self.labels is not None
        return self.labels

    @property
    def teacher(self) -> "GuidedBatch":
        """The batch itself, which is what `selective_cross_entropy` takes from `guided_batch`."""
        return self

    @classmethod
    def of(cls, batch: Mapping[str, Any], **values: Any) -> "GuidedBatch":
        """Takes the columns that a mapping has by their names; `values` are further ones."""
        return cls(**{name: batch[name] for name in COLUMNS if name in batch}, **values)

    def inputs(self) -> dict[str, Any]:
        """The columns of the loss that this batch has, by their names: the arguments of the
        student's forward pass."""
        columns = ((name, getattr(self, name)) for name in INPUTS)
        return {name: value for name, value in columns if value is not None}

    def each(self, change: Callable[[Tensor], Tensor], *sides: Side) -> "GuidedBatch":
        """Applies a function to each tensor of some sides, by default of both."""
        changed: dict[str, Any] = {
            name: change(value)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and (not sides or COLUMNS[name].metadata["side"] in sides)
        }
        return replace(self, **changed)

    def pin_memory(self) -> "GuidedBatch":
        """Copies the tensors to memory from which a device fetches by itself. DataLoader calls
        this method by its name."""
        text = self.live_text
        batch = self.each(Tensor.pin_memory)
        return batch if text is None else replace(batch, live_text=text.pin_memory())

    def to(self, device: torch.device | str) -> "GuidedBatch":
        """Copies the columns of the loss to a device, and makes the mask of isolated documents
        there; what the host needs stays on the host."""
        device = torch.device(device)
        batch = self.each(lambda values: values.to(device, non_blocking=True), "loss")
        if batch.piece is None:
            return batch
        kept_apart: dict[str, Any] = isolation(batch.piece)
        return replace(batch, piece=None, **kept_apart)

    def check(self, labels_BT: Tensor, guidance: GuidanceConfig) -> None:
        """Checks the columns against the labels and the guidance.

        Raises: ValueError for a column of tokens whose first axes are not those of the labels,
            (B, T), for weights that are no shares (their values only on a CPU), for chunks or
            counts of another number of tokens, and for weights and candidates that the method
            would not read; naive training reads nothing.
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
        for name in OF_TOKENS:
            if name in ("input_ids", "labels"):  # the loss reads neither from here
                continue
            value = getattr(self, name)
            if value is not None and value.shape[: labels_BT.ndim] != labels_BT.shape:
                raise ValueError(
                    f"{name} {tuple(value.shape)}: expected the shape of the labels, "
                    f"{tuple(labels_BT.shape)}; cut all tensors of a batch alike"
                )
        before, ends = self.members_before, self.chunk_ends
        # Both are of the whole batch: in a part of it they would cut groups and miscount ids.
        for name, num_tokens in (
            ("members_before", None if before is None else len(before) - 1),
            ("chunk_ends", None if ends is None or not len(ends) else int(ends[-1])),
        ):
            if num_tokens not in (None, labels_BT.numel()):
                raise ValueError(
                    f"{name}: counted for {num_tokens} tokens, but there are "
                    f"{labels_BT.numel()} labels; omit it where a batch is cut"
                )
        # Weights or candidates that nothing reads would be a rule that has no effect, without a
        # word. Other columns, such as groups, only say more of the tokens than a rule asks.
        unread = {
            "weight": not guidance.has_line_rule and "guidance.window_max_loss",
            "candidates": not guidance.needs_candidates and "guidance.method: distill",
        }
        for name, option in unread.items():
            if option and guidance.needs_teacher and getattr(self, name) is not None:
                raise ValueError(f"{name}: only `{option}` reads it; set that, or omit {name}")


def put(values_n: NDArray[Any] | Tensor, places_BT: Tensor, padding: float) -> Tensor:
    """(B, T, ...) the value of the token that is predicted at each position.

    Args: places_BT: the number of that token; -1 at padding.
    """
    values = torch.as_tensor(values_n)
    # Index -1 is the last row, so padding takes the value that is appended.
    return torch.cat([values, values.new_full((1, *values.shape[1:]), padding)])[places_BT]


GuidanceTensors = GuidedBatch
"""`GuidedBatch` by the name that is exported for loops of one's own, which give only the columns of
the loss."""
COLUMNS: dict[str, Any] = {declared.name: declared for declared in fields(GuidedBatch)}
"""The declaration of each column, by its name."""
INPUTS: tuple[str, ...] = tuple(
    name for name, declared in COLUMNS.items() if declared.metadata["side"] == "loss"
)
"""The columns that the student's forward pass takes."""
PADDING: dict[str, float] = {
    name: declared.metadata["padding"]
    for name, declared in COLUMNS.items()
    if declared.metadata["padding"] is not None
}
"""The columns with a value for each token, and the value that stands for none."""
OF_TOKENS: dict[str, float] = {name: PADDING[name] for name in INPUTS if name in PADDING}
"""The columns of the loss with a value for each token, and the value that stands for none. Data
sets and other trainers use these names."""


def needed_columns(guidance: GuidanceConfig) -> list[str]:
    """The columns that examples of a data set must have next to ids, labels and teacher losses."""
    needs = ((name, declared.metadata["needed"]) for name, declared in COLUMNS.items())
    return [name for name, is_needed in needs if is_needed is not None and is_needed(guidance)]


REASONS = ("special", "truncated", "hole", "unscored", "missing", "partial")
"""The counts that say why tokens have no teacher loss."""


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
    Naive training may use columns of any guidance.

    Returns: the fingerprint of the student's tokenizer.
    Raises: ConfigError that names the options that differ.
    """
    options = json.loads(made)
    student: str = options.pop("student")
    if not guidance.needs_teacher:
        return student
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
                f"tokens). Tokens without a teacher loss are treated as guidance.unmapped: "
                f"{guidance.unmapped} says: check the spans of both tokenizers, or lower the limit."
            )


def _column_options(guidance: GuidanceConfig) -> dict[str, Any]:
    """The options that the columns of a data set depend on."""
    names = "method", "unit", "aggregation", "chunks", "window_max_loss"
    # Losses do not depend on `unmapped`; the weights of a rule of lines do.
    unmapped = guidance.unmapped if guidance.has_line_rule else None
    return {name: getattr(guidance, name) for name in names} | {"unmapped": unmapped}


def _differences(made: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """Lists the options that differ, for a message. An absent one differs from one that is None."""
    return ", ".join(
        f"guidance.{name} {made.get(name)}, not {used.get(name)}"
        for name in {**made, **used}
        if (name in made, made.get(name)) != (name in used, used.get(name))
    )

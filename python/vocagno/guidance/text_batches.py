"""A batch of texts for a training loop of one's own: tokens of both sides and losses to tensors.

B: texts, T: predicted tokens of the longest, N and M: tokens of the student and of the teacher.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import as_floats
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import document_rows, join_documents
from vocagno.errors import ConfigError
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.collator import Collator, line_ends
from vocagno.guidance.methods import method_of_other_loops
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores
from vocagno.tokens.id_texts import TokenizedTexts
from vocagno.tokens.token_spans import TokenSpans

_BELOW_ZERO = -1e-3
"""The least value that rounding may make of a loss of 0."""
_ENOUGH = 64
"""The number of tokens with text from which on the share of those that can be compared says
something."""
LEAST_COMPARED = 0.05
"""The least share of tokens that can be compared. Buckets of the right pair of tokenizers give 60 %
or more, those of another pair 1 %."""


def guided_batch(
    student: TokenSpans,
    own: TokenizedTexts,
    other: TokenizedTexts,
    teacher_nll: ArrayLike,
    guidance: GuidanceConfig | None = None,
    *,
    eos_id: int,
    prompt_bytes: Sequence[int] | None = None,
    targets: BucketTargets | None = None,
    candidates: Candidates | None = None,
) -> GuidedBatch:
    """Makes a batch with one row for each of B texts, for a training loop of your own.

    A text stands between the BOS that the student's tokenizer adds, if it adds one, and EOS, as in
    training by `train.py`.

        from vocagno.guidance import guided_batch

        own, other = small.encode(texts), large.encode(texts)
        batch = guided_batch(small, own, other, teacher_nll, eos_id=2)

    Give its fields to `selective_cross_entropy`, with the same guidance. Add up the counts of
    batches and give them to `check_coverage`, which stops a loop with few teacher losses.

    Args:
        student: the student's tokenizer.
        own, other: the texts in the student's and in the teacher's tokens, in the same order and
            without special tokens around them.
        teacher_nll: (M,) the teacher's loss on each of its tokens in nats; NaN, infinite or masked
            where it has none.
        guidance: the rule; default: `GuidanceConfig()`. Not `kld`, `uld` and random chunks, which
            need more than losses.
        eos_id: the id that ends a text for the student.
        prompt_bytes: (B,) bytes at the start of each text that are not learnt.
        targets, candidates: for `distill`: the buckets, and the teacher's M most likely tokens
            (`Candidates.of`).
    Raises: ValueError for other numbers of texts or losses, for negative losses (log-probabilities
        have the other sign), and if less than `guidance.min_coverage` of the student's tokens share
        text with one of the teacher's; ConfigError for a method that needs more than losses, and as
        `check_targets`.
    """
    guidance = guidance or GuidanceConfig()
    method = method_of_other_loops(guidance, targets)
    check_targets(guidance, targets, student.fingerprint)
    if (candidates is None) != (targets is None):
        needs = "the candidates of the teacher's tokens" if targets else "none"
        raise ConfigError(f"candidates: guidance.method: {guidance.method} needs {needs}")
    if candidates is not None and not np.array_equal(candidates.tokens, other.ids):
        raise ValueError(
            "candidates: their tokens are not those of `other`; give both for the same texts"
        )
    nll = _check_losses(teacher_nll, own, other, prompt_bytes)
    _check_ends(student, own, eos_id)
    for name, tokens in (("own", own), ("other", other)):
        _check_places(name, tokens)
    rows = document_rows(join_documents(own, 0, student.prefix_ids, eos_id, prompt_bytes))
    scores = [
        DocumentScores(
            other.spans[place],
            nll[place],
            candidates=None if candidates is None else candidates[place],
        )
        for place in map(other.text, range(len(other)))
    ]
    # As long as the longest text, so that no text is cut.
    data = DataConfig(train="", seq_len=max(1, *(len(row.ids) - 1 for row in rows)))
    ends = line_ends(student, guidance)
    collator = Collator(ScoresInOrder(scores), guidance, data, ends, targets)
    batch = collator(rows)
    counts = batch.counts
    # Spans of any two texts can be aligned: other texts show only by tokens that share none.
    if counts.mapped < guidance.min_coverage * counts.with_text:
        raise ValueError(
            f"own, other: only {counts.mapped:,} of {counts.with_text:,} tokens of the student "
            "share text with one of the teacher's (guidance.min_coverage "
            f"{guidance.min_coverage}): are these the same texts in the same order?"
        )
    if targets is not None:
        assert batch.candidates is not None
        compared = int((batch.candidates >= 0).any(-1).sum())
        if counts.with_text >= _ENOUGH and compared < LEAST_COMPARED * counts.with_text:
            raise ConfigError(
                f"targets: only {compared} of {counts.with_text} tokens can be compared: their "
                "buckets are of another teacher tokenizer than `other` and `candidates`"
            )
    return replace(
        batch,
        num_kept=counts.kept if method.counts_kept_exactly else None,
        guidance=guidance,
        buckets=None if targets is None else targets.table,
    )


def _check_places(name: str, tokens: TokenizedTexts) -> None:
    """Raises: ValueError for a text none of whose tokens has a place in it: `from_ids` finds none
    for ids that do not determine their text, and all of them would count as special ones."""
    sizes = np.diff(tokens.spans, axis=1)[:, 0]
    has_ids = np.diff(tokens.cu_seqlens) > 0
    has_text = np.add.reduceat(np.append(sizes, 0), tokens.cu_seqlens[:-1]) > 0
    lost = np.flatnonzero(has_ids & ~has_text & ~tokens.proved)
    if len(lost):
        raise ValueError(
            f"{name}: no token of text {lost[0]} has a place in it, because its ids do not "
            "determine the text, or are of another one; tokenize the texts with `encode`"
        )


def _check_losses(
    teacher_nll: ArrayLike,
    own: TokenizedTexts,
    other: TokenizedTexts,
    prompt_bytes: Sequence[int] | None,
) -> NDArray[np.float32]:
    """Returns the losses as float32, NaN for infinite ones. Raises: ValueError if there are not as
    many as tokens, or if they are negative."""
    if len(own) != len(other) or not len(own):
        raise ValueError(f"expected as many texts on both sides, got {len(own)} and {len(other)}")
    if prompt_bytes is not None and len(prompt_bytes) != len(own):
        raise ValueError(f"prompt_bytes: expected {len(own)}, got {len(prompt_bytes)}")
    nll = as_floats(teacher_nll, np.float32, "teacher_nll")
    if nll.shape != other.ids.shape:
        raise ValueError(
            f"teacher_nll: expected one for each of {len(other.ids)} tokens, got shape {nll.shape}"
        )
    nll = np.where(np.isfinite(nll), nll, np.float32(np.nan))  # infinite counts as none
    if (nll < _BELOW_ZERO).any():
        raise ValueError(
            f"teacher_nll: {np.nanmin(nll):.3g} is no loss, which is 0 at least; log-probabilities "
            "have the other sign"
        )
    return nll


def _check_ends(student: TokenSpans, own: TokenizedTexts, eos_id: int) -> None:
    """Rejects an EOS that is no id, ids of another tokenizer, and texts with BOS or EOS."""
    limit = student.vocabulary_size
    if not isinstance(eos_id, (int, np.integer)) or not 0 <= eos_id < limit:
        raise ValueError(f"eos_id: expected an id from 0 to {limit - 1}, got {eos_id!r}")
    if len(own.ids) and own.ids.max() >= limit:
        raise ValueError(
            f"own: id {own.ids.max()}, but the student's tokenizer has {limit}; are `own` and "
            "`other` in each other's place?"
        )
    before = student.prefix_ids
    for index in range(len(own)):
        ids = own.ids[own.text(index)]
        begins = bool(before) and tuple(ids[: len(before)].tolist()) == before
        if begins or (len(ids) and ids[-1] == eos_id):
            raise ValueError(
                f"own: text {index} begins with BOS or ends with EOS, which would stand twice; "
                "drop them"
            )

"""Columns of a `datasets.Dataset` to train on: ids, labels, and the teacher's loss of each token.

The texts that the student and the teacher read of an example, and the tokens that are learnt:

| example | student | teacher | learnt |
|---|---|---|---|
| `text` | the text, between BOS and EOS | the text | all |
| `prompt`, `completion` | both, one after the other | the same | the completion |
| `messages` | its chat template | its own chat template, or the contents without one | the tokens \
that the student's template marks as the assistant's |

Of a conversation only the answers are in both texts, so only they are aligned. The teacher reads
its own template, because its losses are worse in another one. What a template writes around an
answer (the end of a turn, for example) has no teacher loss.

A: answers of a conversation, n: tokens of an example.
"""

import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.corpus_files import CorpusError
from vocagno.data.rows import Row, document_rows, join_documents
from vocagno.data.sources import Document, document_of
from vocagno.data.store.format import MAX_REFUSED, RefusalLimit
from vocagno.errors import GuidanceError, InputError
from vocagno.guidance.batch import OF_TOKENS, TokenCounts, check_coverage, made_for
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.collator import Collator, line_ends
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.integrations.conversations import (
    Conversation,
    conversation,
    learnt_tokens,
    limit_text_to,
    move_answer_scores,
    template_options,
)
from vocagno.teacher.score_store import NOT_SCORED, DocumentScores, ScoresOfTexts, ScoreStore
from vocagno.teacher.scoring import Teacher
from vocagno.tokens.student_tokenizer import eos_warning
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

Examples = Mapping[str, Sequence[Any]]
"""The columns of some examples, from `datasets.map(batched=True)`."""

OF_EXAMPLES = ("teacher_sums", "token_counts", "made_for")
"""The columns with one value for each example."""


def add_teacher_loss(
    dataset: Any,
    student: Any,
    teacher: Teacher | ScoreStore,
    guidance: GuidanceConfig | None = None,
    *,
    teacher_tokenizer: Any = None,
    max_length: int | None = None,
    allow_missing: bool = False,
    targets: BucketTargets | None = None,
    max_refused: float = MAX_REFUSED,
    num_proc: int | None = None,
    batch_size: int = 64,
) -> Any:
    """Replaces the columns of a data set by the columns to train on.

    Args:
        dataset: a `datasets.Dataset` with `text`, with `prompt` and `completion`, or with
            `messages`, and no other column where a data set has these, too. A text gets BOS and
            EOS here, so it should bring none of its own.
        max_refused: the share of the examples that may be omitted, because the student's tokens
            cannot be placed in their text; up to ten always may, but with 0 none. Messages name
            them.
        max_length: tokens that are kept of an example; what follows them is not trained on.
        num_proc: processes that share the work. Each gets a copy of a loaded teacher.
        batch_size: examples that the teacher and the tokenizers read together.
        student, teacher, guidance, ...: the arguments of `TeacherLossColumns`.
    Raises: the errors of `TeacherLossColumns`; GuidanceError if too few of the tokens to learn
        have a teacher loss, or too many are in examples without scores (`min_coverage`); StoreError
        for more omitted examples than `max_refused`.
    """
    if not hasattr(dataset, "__len__") or isinstance(dataset.column_names, dict):
        raise InputError(
            f"dataset: expected a datasets.Dataset, got {type(dataset).__name__}; give one split "
            "of it, and map a stream by TeacherLossColumns"
        )
    columns = TeacherLossColumns(
        student,
        teacher,
        guidance,
        teacher_tokenizer=teacher_tokenizer,
        max_length=max_length,
        allow_missing=allow_missing,
        targets=targets,
    )
    # Without a fingerprint the cache of a data set would hash all weights of a loaded teacher.
    name = {"new_fingerprint": uuid.uuid4().hex} if isinstance(teacher, Teacher) else {}
    guided = dataset.map(
        columns,
        batched=True,
        batch_size=batch_size,
        num_proc=num_proc,
        remove_columns=dataset.column_names,
        desc="teacher_loss",
        **name,
    )
    omitted = len(dataset) - len(guided)
    # `map` may run in several processes, none of which sees the share of all examples.
    RefusalLimit("dataset", len(dataset), max_refused).check(omitted, "Messages above name them")
    if len(guided):
        _check_coverage(guided.data.column("token_counts"), columns.guidance)
    return guided


def _check_coverage(column: Any, guidance: GuidanceConfig) -> None:
    """Checks the coverage of a data set by its column `token_counts`. Raises: GuidanceError."""
    # Summed in the chunks of the Arrow column, without a Python object for each example.
    width = len(TokenCounts._fields)
    parts = (part.flatten().to_numpy().reshape(-1, width).sum(0) for part in column.chunks)
    total = TokenCounts(*sum(parts, np.zeros(width, np.int64)).tolist())
    scored_share = 1 - total.missing / max(1, total.predicted)
    if guidance.needs_teacher and scored_share < guidance.min_coverage:
        raise GuidanceError(
            f"dataset: only {scored_share:.2%} of the tokens to learn are in examples that have "
            f"scores (guidance.min_coverage: {guidance.min_coverage:.2%}): score the texts that "
            "TeacherTexts gives, or lower the limit"
        )
    check_coverage(total, guidance, "dataset")


class TeacherTexts:
    """Makes the texts that a teacher reads of examples, for `datasets.map(batched=True)`.

    The result is one column, `text`. To score examples ahead, write it as a corpus for
    `vocagno score`.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        """Args: tokenizer: the teacher's, of transformers, with its chat template; None: it has no
        template. Only `messages` need it."""
        self._tokenizer = tokenizer
        adds_bos = tokenizer is not None and bool(TokenSpans(tokenizer).prefix_ids)
        self._bos: str = (adds_bos and getattr(tokenizer, "bos_token", None)) or ""

    def __call__(self, examples: Examples) -> dict[str, list[str]]:
        """The text of each example. Raises: the errors of `TeacherLossColumns`."""
        if "messages" in examples:
            options = template_options(examples)
            conversations = [
                self.conversation(messages, **of_template)
                for messages, of_template in zip(examples["messages"], options, strict=True)
            ]
            return {"text": [conversation.text for conversation in conversations]}
        return {"text": [document.text for document in _documents(examples)]}

    def conversation(self, messages: Any, **options: Any) -> Conversation:
        """The conversation that the teacher reads, without a BOS that its tokenizer adds.
        Args: options: of the chat template (`template_options`)."""
        whole = conversation(messages, self._tokenizer, **options)
        # Templates often write the BOS that the tokenizer then adds: the teacher would read it
        # twice.
        text = whole.text.removeprefix(self._bos)
        removed = len(whole.text.encode()) - len(text.encode())
        return Conversation(text, whole.answers - removed)


class TeacherLossColumns:
    """Makes the columns to train on, for `datasets.map(batched=True)`. It can be pickled.

    Each example has n tokens. `input_ids` and `labels` are those of `transformers.Trainer`: not
    shifted, -100 where nothing is learnt. `teacher_loss` is the loss that each token is compared
    with, float32, nats; NaN where the teacher has none. The guidance may need more of a token:
    `weight`, `groups`, `chunks`, `candidates`, `candidate_mass` and `candidate_entropy` (a list
    each); and of an example: `teacher_sums` (described at `GuidedBatch`). Two columns are for
    checks: `made_for` names what the values depend on; `token_counts`, (14,) int32, has the fields
    of `TokenCounts`.
    """

    _has_warned = False

    def __init__(
        self,
        student: Any,
        teacher: Teacher | ScoreStore,
        guidance: GuidanceConfig | None = None,
        *,
        teacher_tokenizer: Any = None,
        max_length: int | None = None,
        allow_missing: bool = False,
        targets: BucketTargets | None = None,
    ) -> None:
        """Args:
            student: a tokenizer of transformers with an EOS; for `messages` with a chat template
                that marks what the assistant writes (`{% generation %}`).
            teacher: a loaded teacher, or its scores of the texts that `TeacherTexts` gives.
            guidance: decides what a token is compared with; default: `GuidanceConfig()`.
            teacher_tokenizer: the `tokenizer` of `TeacherTexts`.
            max_length: tokens that are kept of an example, at least 1; default: all. What follows
                them is not trained on, which a warning tells.
            allow_missing: True gives NaN to the tokens of an example that is not in the scores;
                otherwise it is an error.
            targets: the buckets of both vocabularies, for `distill`.
        Raises: InputError for a `max_length` below 1, a tokenizer without EOS or without the
            template that `messages` need, and for an example that is not in the scores; CorpusError
            for examples without text.
        """
        if student.eos_token_id is None:
            raise InputError("student: its tokenizer has no eos_token, which ends an example")
        if max_length is not None and max_length < 1:
            raise InputError(f"max_length: expected at least 1 token, got {max_length}")
        self._student = student
        self._spans = TokenSpans(student)
        self.guidance: GuidanceConfig = guidance or GuidanceConfig()
        if self.guidance.warning:
            warnings.warn(self.guidance.warning, stacklevel=2)
        method_of(self.guidance)  # a rule of one's own must be there before anything is scored
        if isinstance(teacher, ScoreStore) and (warning := teacher.warning_of_pieces()):
            warnings.warn(warning, stacklevel=2)
        self._teacher: Teacher | ScoresOfTexts = (
            ScoresOfTexts(teacher, candidates=self.guidance.needs_candidates)
            if isinstance(teacher, ScoreStore)
            else teacher
        )
        self._texts = TeacherTexts(teacher_tokenizer)
        _check_teacher_tokenizer(teacher_tokenizer, teacher)
        self._max_length = max_length
        self._allow_missing = allow_missing
        self._line_ends: NDArray[np.bool_] | None = line_ends(self._spans, self.guidance)
        self._targets = targets
        check_targets(self.guidance, targets, self._spans.fingerprint, _tokenizer_of(teacher))
        table = None if targets is None else targets.table
        self._made_for: str = made_for(self.guidance, self._spans.fingerprint, table)

    def __getstate__(self) -> dict[str, Any]:
        # `datasets` finds again what it has made by a hash of this, which no warning must change.
        return {name: value for name, value in vars(self).items() if name != "_has_warned"}

    def __call__(self, examples: Examples) -> dict[str, list[Any]]:
        """The columns of some examples."""
        read = self._of_messages if "messages" in examples else self._of_documents
        rows, scores = read(examples)
        whole_rows, rows = rows, [_truncate(row, self._max_length) for row in rows]
        self._warn_of_lost_tokens(whole_rows, rows)
        width = max((len(row.ids) for row in rows), default=0)
        # The rows are as wide as the longest example: `Collator` predicts all tokens of a row but
        # the first.
        data = DataConfig(train="", seq_len=max(1, width - 1))
        collator = Collator(
            ScoresInOrder(scores), self.guidance, data, self._line_ends, self._targets
        )
        columns: dict[str, list[Any]] = {"input_ids": [row.ids for row in rows]}
        if not rows:
            return columns
        batch = collator(rows)
        columns["made_for"] = [self._made_for] * len(rows)
        assert batch.row_counts is not None
        columns["token_counts"] = list(batch.row_counts.astype(np.int32))
        if batch.teacher_sums is not None:
            columns["teacher_sums"] = list(batch.teacher_sums.numpy())
        for name, values_BT in batch.inputs().items():
            if name in OF_TOKENS and name != "input_ids":
                columns[name] = [
                    _unshift(values_T.numpy(), len(row.ids), name)
                    for values_T, row in zip(values_BT, rows, strict=True)
                ]
        return columns

    def _warn_of_lost_tokens(self, whole_rows: Sequence[Row], rows: Sequence[Row]) -> None:
        """Warns, in the first batch that has some, of tokens beyond `max_length`."""
        num_tokens, num_kept = (sum(len(row.ids) for row in rows) for rows in (whole_rows, rows))
        if num_kept < num_tokens and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"max_length: {self._max_length} tokens are kept of an example, so "
                f"{1 - num_kept / num_tokens:.1%} of the tokens of these {len(rows):,} examples "
                "are not trained on; cut the texts into parts, or train on rows "
                "(`vocagno prepare`)",
                stacklevel=2,
            )

    def _of_documents(self, examples: Examples) -> tuple[list[Row], list[DocumentScores]]:
        """The rows and scores of texts, or of prompts with completions."""
        documents = _documents(examples)
        texts = [document.text for document in documents]
        prompts = [document.prompt_bytes for document in documents]
        if words := eos_warning(self._spans, self._student.eos_token):
            warnings.warn(f"student: {words}; set eos_token of the tokenizer", stacklevel=2)
        tokens, refused = self._spans.try_encode(texts)
        _say_omitted(texts, refused)
        bos, eos = self._spans.prefix_ids, self._student.eos_token_id
        stream = join_documents(tokens, 0, bos, eos, prompts, skipped=refused)
        return document_rows(stream), self._scores(texts)

    def _of_messages(self, examples: Examples) -> tuple[list[Row], list[DocumentScores]]:
        """The rows of conversations, and only the scores of their answers."""
        student_side, teacher_side = [], []
        options = template_options(examples)
        for number, messages in enumerate(examples["messages"]):
            with _naming(number):
                student_side.append(conversation(messages, self._student, **options[number]))
                teacher_side.append(self._texts.conversation(messages, **options[number]))
        texts = [side.text for side in student_side]
        tokens, refused = self._spans.try_encode(texts)
        _say_omitted(texts, refused)
        rows, scores = [], self._scores([side.text for side in teacher_side])
        for number, (student, teacher) in enumerate(zip(student_side, teacher_side, strict=True)):
            if number in refused:
                continue
            compared = student.answers
            # An example without scores has no teacher tokens to move.
            if not scores[number].missing:
                scores[number], compared = move_answer_scores(
                    scores[number], teacher.answers, student.answers
                )
            with _naming(number):
                ids, learnt = learnt_tokens(
                    examples["messages"][number], self._student, **options[number]
                )
                row = self._row(ids, learnt, tokens[number], number)
            rows.append(limit_text_to(row, compared))
        return rows, scores

    def _row(
        self, ids: list[int], learnt: NDArray[np.bool_], tokens: TokenizedTexts, number: int
    ) -> Row:
        """The row of a conversation: pieces that each end with what the assistant has written.
        Args: ids, learnt: `learnt_tokens`."""
        # Spans are of the text, the mask of what is learnt is of the template's ids: both must be
        # one.
        if tokens.ids.tolist() != ids:
            raise CorpusError(
                "the student's tokenizer gives other ids for its chat template than for the text "
                "of it; use `prompt` and `completion`"
            )
        # A piece ends after each answer, so that "prompt" means what stands before an answer.
        begins = np.flatnonzero(learnt[:-1] & ~learnt[1:]) + 1
        sizes = np.diff([0, *begins.tolist(), len(ids)]).astype(np.int32)
        prompts = np.add.reduceat(~learnt, np.cumsum(sizes) - sizes, dtype=np.int32)
        return Row(tokens.ids, tokens.spans, np.full(len(sizes), number), sizes, prompts)

    def _scores(self, texts: list[str]) -> list[DocumentScores]:
        """The scores of some texts, by the teacher or from its store.

        Raises: InputError for texts that are not in the store, unless they may be missing.
        """
        if isinstance(self._teacher, Teacher):
            return self._teacher.score(texts)
        scores = self._teacher.find(texts)
        missing = [number for number, of_text in enumerate(scores) if of_text is NOT_SCORED]
        if missing and not self._allow_missing:
            raise InputError(
                f"{self._teacher.store.folder}: has no scores of {len(missing):,} of "
                f"{len(scores):,} examples; the first one begins {texts[missing[0]][:60]!r}. Score "
                "the texts that TeacherTexts gives, or set allow_missing"
            )
        return scores


def _tokenizer_of(teacher: Teacher | ScoreStore) -> str | None:
    """The fingerprint of a teacher's tokenizer, if its store names it."""
    if isinstance(teacher, Teacher):
        return teacher.reader.spans.fingerprint
    fingerprint: str | None = teacher.manifest.made_from.get("tokenizer")
    return fingerprint


def _check_teacher_tokenizer(tokenizer: Any, teacher: Teacher | ScoreStore) -> None:
    """Warns of a tokenizer with another vocabulary than the teacher's: its chat template would not
    be the teacher's, either."""
    if tokenizer is None or not isinstance(teacher, Teacher):
        return
    ids, expected = TokenSpans(tokenizer).vocabulary(), teacher.reader.spans.vocabulary()
    if num_other := len(expected.items() - ids.items()):
        warnings.warn(
            f"teacher_tokenizer: {num_other:,} of the teacher's {len(expected):,} tokens have "
            "another id in it, or none: is it the teacher's tokenizer?",
            stacklevel=4,
        )


def _say_omitted(texts: Sequence[str], reasons: Mapping[int, str]) -> None:
    """Prints why examples are omitted, by their numbers in `texts`."""
    for number, reason in reasons.items():
        print(f"omitted the example that begins {texts[number][:40]!r}: {reason}", file=sys.stderr)


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Adds the number of the example to an error."""
    try:
        yield
    except CorpusError as error:
        raise CorpusError(f"example {number} of its batch: {error}") from error


def _documents(examples: Examples) -> list[Document]:
    """The documents of examples that are not conversations. Raises: CorpusError without text."""
    names = [name for name in ("text", "prompt", "completion") if name in examples]
    if "text" in names and len(names) > 1:
        raise CorpusError(
            f"examples have `text` and `{names[1]}`, which may say different things; remove one"
        )
    if "text" not in names and "completion" not in names:
        raise CorpusError(
            f"expected `text`, `prompt` and `completion`, or `messages`; got {', '.join(examples)}"
        )
    return [
        document_of(dict(zip(names, values, strict=True)), f"example {number} of its batch")
        for number, values in enumerate(zip(*(examples[name] for name in names), strict=True))
    ]


def _truncate(row: Row, max_length: int | None) -> Row:
    """The first `max_length` tokens of a row; pieces beyond them are dropped."""
    if max_length is None or len(row.ids) <= max_length:
        return row
    # Pieces that begin beyond the limit have no tokens left, and a row holds no empty pieces.
    stops = np.minimum(np.cumsum(row.num_tokens), max_length)
    sizes = np.diff(stops, prepend=0).astype(np.int32)
    has_tokens = sizes > 0
    return Row(
        row.ids[:max_length],
        row.spans[:max_length],
        row.documents[has_tokens],
        sizes[has_tokens],
        np.minimum(row.num_prompt, sizes)[has_tokens],
    )


def _unshift(values: NDArray[Any], num_tokens: int, name: str) -> NDArray[Any]:
    """Moves values from the positions that predict tokens to the tokens themselves.

    The numbers of groups begin with 0 in each example.
    """
    dtype = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int32
    first = np.full((1, *values.shape[1:]), OF_TOKENS[name])
    column = np.concatenate([first, values[: num_tokens - 1]]).astype(dtype)
    if name == "groups" and (column >= 0).any():
        column = np.where(column >= 0, column - column[column >= 0].min(), column)
    return column[:num_tokens]


def pad_column(columns: Sequence[Mapping[str, Any]], name: str, width: int) -> torch.Tensor:
    """Pads a column with values for each token at the end. Returns: (B, width, ...).

    The numbers of groups are made different in different examples.
    """
    dtype = torch.float32 if isinstance(OF_TOKENS[name], float) else torch.int64
    values = [torch.as_tensor(np.asarray(example[name]), dtype=dtype) for example in columns]
    shape = len(columns), width, *values[0].shape[1:]
    padded_BT = torch.full(shape, OF_TOKENS[name], dtype=dtype)
    for row, values_n in enumerate(values):
        padded_BT[row, : len(values_n)] = values_n
    if name == "groups":
        # An example has at most `width` groups, so these ranges do not overlap.
        first_B1 = torch.arange(len(columns))[:, None] * width
        padded_BT = torch.where(padded_BT >= 0, padded_BT + first_B1, padded_BT)
    return padded_BT

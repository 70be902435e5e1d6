"""Shows which tokens of a text a teacher chooses: on a page of a run, or for one text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, align
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus, text_hash
from vocagno.data.prepare import at_character
from vocagno.data.rows import Row, RowStore, cut_rows, join_documents
from vocagno.errors import InputError, require
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.collator import Collator, line_ends, with_live_losses
from vocagno.guidance.comparison import DocumentPairs
from vocagno.guidance.excess_rule import UnitFacts, unit_facts
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import StudentOutput
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.models.loading import check_positions, load_student, local_device, student_settings
from vocagno.models.own_tokenizers import check_own_tokenizer, tokenizer_of_student
from vocagno.system.files import atomic_file
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.live import LiveTeacher, TextTeacher
from vocagno.tokens.buckets import buckets
from vocagno.tokens.student_tokenizer import StudentTokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.step import GuidedStudent
from vocagno.views.html import render_page
from vocagno.views.passage import Passage, StudentToken, Token, add_verdicts
from vocagno.views.texts import GuidedText

DOCUMENTS = 3
"""The number of documents of each corpus that are shown."""
SHORTEST = 200
"""Documents of at most so many characters are not shown if there are longer ones."""
TOKENS = 200
"""The most tokens of a document that are shown, from its beginning."""

_NO_FACTS = [None] * len(UnitFacts._fields)
_UNPREDICTED: tuple[Any, ...] = (None, np.nan, 0.0, Reason.SPECIAL, *_NO_FACTS)
"""The loss, teacher loss, weight, reason and facts of a first token, which is not predicted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A document and the row that its beginning makes."""

    title: str
    text: str
    row: Row


def choose_samples(
    corpus: Corpus, tokenizer: StudentTokenizer, seq_len: int, first_document: int = 0
) -> list[Sample]:
    """Chooses the first documents of a corpus that are not too short, or else the first ones.

    Args: first_document: the number of the corpus's first document in the rows of the run.
    """
    shard = corpus.shards[0]
    documents = corpus.read_shard(shard)
    sizes = [len(text) for text in documents.texts]
    longer = [number for number, size in enumerate(sizes) if size > SHORTEST]
    samples: list[Sample] = []
    for number in longer or [number for number, size in enumerate(sizes) if size]:
        # One document at a time: the first three are enough, and a shard may have thousands.
        tokens, refused = tokenizer.spans.try_encode([documents.texts[number]])
        if refused:
            continue
        document = shard.first_document + number
        stream = join_documents(
            tokens,
            first_document + document,
            tokenizer.spans.prefix_ids,
            tokenizer.eos_id,
            [documents.prompt_bytes[number]],
        )
        row = cut_rows(stream, min(seq_len, TOKENS, len(stream.ids) - 1))[0]
        samples.append(Sample(f"Document {document}", documents.texts[number], row))
        if len(samples) == DOCUMENTS:
            break
    return samples


def samples_of_rows(
    samples: Sequence[Sample], store: RowStore, first_document: int
) -> list[Sample]:
    """Omits the samples whose text is not that of the rows' document with their number, by
    which their scores are found.

    Args: first_document: the number that the first document of the store has in the run.
    """
    numbers = [int(sample.row.documents[0]) - first_document for sample in samples]
    hashes, _ = store.documents([0])  # usually the shard with the first documents
    if any(number < len(hashes) and not any(hashes[number].tobytes()) for number in numbers):
        hashes, _ = store.documents()
    return [
        sample
        for sample, number in zip(samples, numbers, strict=True)
        if number < len(hashes) and hashes[number].tobytes() == text_hash(sample.text)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """Shows the teacher's choice in some documents, with the student as it is now."""

    samples: Sequence[Sample]
    tokenizer: StudentTokenizer
    teacher: TokenSpans | None
    """The teacher's tokenizer, for the texts of its tokens; None: they are not shown."""
    collator: Collator
    live_teacher: LiveTeacher | None = None

    @torch.no_grad()
    def passages(self, student: Any, device: torch.device) -> list[Passage]:
        """Makes a passage of each document. All processes call it: they may share one student.

        Args: student: a `GuidedStudent`, which Accelerate may have wrapped.
        """
        training, guided = student.training, getattr(student, "module", student)
        method = guided.method
        student.eval()
        # A document is ranked by itself, whatever else a step would rank with it.
        guided.method = method_of(replace(method.guidance, scope="sequence"))
        try:
            return [self._passage(sample, student, device) for sample in self.samples]
        finally:
            guided.method = method
            student.train(training)

    def _passage(self, sample: Sample, student: Any, device: torch.device) -> Passage:
        """Makes the passage of one document: aligns it, and runs teacher and student on it."""
        row = sample.row
        pairs, compared = self.collator.align([row])
        batch, live_losses = self.collator([row]).to(device), dict[str, Any]()
        teacher_nll, text = pairs.teacher_nll, batch.live_text
        if isinstance(self.live_teacher, TextTeacher) and text is not None:
            nll_M = self.live_teacher.token_losses(text, self.live_teacher.plan(text))
            live_losses = self.live_teacher.student_inputs(nll_M, text)
            teacher_nll = nll_M.cpu().numpy()
        elif self.live_teacher is not None:  # it reads the row: a loss of each token but the first
            live_losses = self.live_teacher.guide(None, batch.inputs(), [])
            predicted = live_losses["teacher_loss"][0, : len(row.ids) - 1].cpu().numpy()
            teacher_nll = np.concatenate([[np.float32(np.nan)], predicted])
        # Groups without all losses are unmapped, but both sides are shown.
        shared = compared.mapping
        if compared.groups is not None:
            shared = align(row.spans, pairs.teacher_spans)
        shown = _mapped_rows(shared)
        end = max(
            int(spans[:, 1].max(initial=0)) for spans in (row.spans, pairs.teacher_spans[shown])
        )
        data = sample.text.encode()
        end = at_character(data, end, 1)  # a token may end inside a character
        # What a rule looked at is shown, so the columns of the host are needed on the device, too.
        batch = batch.each(lambda values: values.to(device), "host")
        if live_losses:  # otherwise the collator made the weight
            batch = with_live_losses(batch, live_losses, self.collator.method)
        output = student(**batch.inputs())
        sums = LossSums.of(output.sums.cpu())  # of one row, which is one scope
        passage = Passage(
            title=sample.title,
            text=data[:end].decode(),
            student=self._student_tokens(row, batch, output),
            teacher=self._teacher_tokens(sample, pairs, teacher_nll, shown),
            mapping=[
                (first - shown.start, stop - shown.start) if first >= 0 else (-1, -1)
                for first, stop in compared.mapping.tolist()
            ],
            threshold=sums.threshold if sums.scopes == 1 else None,
        )
        return add_verdicts(passage, self.collator.guidance)

    def _student_tokens(
        self, row: Row, batch: GuidedBatch, output: StudentOutput
    ) -> list[StudentToken]:
        """The student's tokens with what the loss computed for each; B is 1."""
        facts = unit_facts(output.nll_BT, batch, self.collator.guidance)
        columns = output.nll_BT, batch.teacher_loss, output.weights_BT, batch.reasons, *facts
        count = len(row.ids) - 1
        values = []
        for first, column in zip(_UNPREDICTED, columns, strict=True):
            of_predicted = [None] * count if column is None else column[0, :count].tolist()
            values.append([first, *of_predicted])
        return [
            StudentToken(
                text=self.tokenizer.spans.token(index) or "",
                id=index,
                start=start,
                end=end,
                nll=nll,
                teacher_loss=_finite(teacher),
                weight=weight,
                reason=self._reason(reason, teacher),
                unit_excess=_finite(excess),
                neighbours_loss=_finite(neighbours),
            )
            for index, (start, end), nll, teacher, weight, reason, excess, neighbours in zip(
                row.ids.tolist(), row.spans.tolist(), *values, strict=True
            )
        ]

    def _reason(self, reason: int, teacher_loss: float) -> str:
        """The name of a reason in lower case.

        It is `partial` for a mapped token whose group lacks a teacher loss.
        """
        is_mapped = reason == Reason.MAPPED and self.collator.guidance.unit == "group"
        is_partial = is_mapped and not np.isfinite(teacher_loss)
        return "partial" if is_partial else Reason(reason).name.lower()

    def _teacher_tokens(
        self, sample: Sample, pairs: DocumentPairs, nll: NDArray[np.floating[Any]], shown: slice
    ) -> list[Token]:
        """The teacher's tokens in the rows `shown`, with their losses in nats."""
        if self.teacher is None:
            ids = None
        elif pairs.windowed is not None:
            ids = pairs.windowed.tokens.ids[shown]
        elif self.live_teacher is not None:
            ids = sample.row.ids[shown]
        else:  # the ids are not stored: the whole document is tokenized again
            before = int(pairs.teacher_tokens_before[0])
            ids = self.teacher.try_encode([sample.text])[0].ids
            ids = ids[before + shown.start : before + shown.stop]
        spans, losses = pairs.teacher_spans[shown].tolist(), nll[shown].tolist()
        tokens = []
        for place, ((start, end), loss) in enumerate(zip(spans, losses, strict=True)):
            index = None if ids is None else int(ids[place])
            text = None
            if index is not None and self.teacher is not None:
                text = self.teacher.token(index)
            tokens.append(Token(text=text or "", id=index, start=start, end=end, nll=_finite(loss)))
        return tokens


def _mapped_rows(mapping: NDArray[np.int32]) -> slice:
    """The teacher's rows from the first to the last to which a student token is mapped."""
    mapped = mapping[mapping[:, 0] >= 0]
    return slice(int(mapped[:, 0].min()), int(mapped[:, 1].max())) if len(mapped) else slice(0, 0)


def write_page(path: Path, passages: Sequence[Passage], step: int) -> None:
    """Writes the page of some documents at a step of a run."""
    html = render_page(
        title=f"What the teacher chose at step {step:,}",
        introduction=f"The first {TOKENS} tokens of a few documents, each ranked by itself, with "
        "the student as it was then.",
        summary_rows=[],
        passages=passages,
    )
    with atomic_file(path) as file:
        file.write(html.encode())


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def guide_text(
    student: StudentConfig,
    teacher: TeacherConfig,
    text: str,
    guidance: GuidanceConfig | None = None,
) -> GuidedText:
    """Loads both models and shows what the teacher chooses of a text.

    Args:
        student: with a `model`; weights are read in float32, as for training.
        guidance: default: that of training. `scope` has no effect: the text is one row, which is
            ranked by itself.
    Raises: InputError for a text without tokens to predict, that a tokenizer cannot read, or longer
        than the student reads; ConfigError for models that do not load, and for a method other
        than `vocagno`, `alm` and `distill`; BucketError for tokenizers that `distill` refuses.

    The text is checked before any weights are read. The selection is that of training with stored
    scores, whose teacher losses are float16. For `distill` the text shows where tokens start, not
    the distributions.
    """
    guidance = guidance or GuidanceConfig()
    require(
        guidance.can_show_text,
        f"guidance.method: {guidance.method}: is not shown; vocagno, alm, distill are",
    )
    require(student.model is not None, "student.model: needed, with weights that say something")
    device = local_device()
    tokenizer = tokenizer_of_student(student)
    configured = ConfiguredTeacher(teacher, Path(), device)
    configured.spans.encode([text])  # raises if it cannot be read
    row = _row(text, tokenizer)
    length = len(row.ids) - 1
    check_own_tokenizer(tokenizer.spans, student.model, "student")
    settings = student_settings(student, tokenizer.spans.vocabulary_size, seq_len=1)
    check_positions(settings, length, "text", "student")
    configured.check()
    if guidance.needs_candidates:
        buckets(tokenizer.spans, configured.spans).check()
    model = load_student(student, settings, seed=0)
    scores = ScoresInOrder(configured.load().score([text]))
    data, ends = DataConfig(train="one text", seq_len=length), line_ends(tokenizer.spans, guidance)
    scored_guidance = guidance
    if guidance.needs_candidates:  # the losses and groups of `alm` are the same
        scored_guidance = replace(guidance, method="alm", distill_where="surer")
    collator = Collator(scores, scored_guidance, data, ends)
    sampler = Sampler([Sample("The text", text, row)], tokenizer, configured.spans, collator)
    (passage,) = sampler.passages(GuidedStudent(model.to(device), scored_guidance), device)
    teacher_name = "/".join(filter(None, (teacher.model, teacher.gguf_file)))
    return GuidedText(str(student.model), teacher_name, guidance, add_verdicts(passage, guidance))


def _row(text: str, tokenizer: StudentTokenizer) -> Row:
    """One row of the text between BOS and EOS. Raises: InputError for a text without tokens."""
    tokens = tokenizer.spans.encode([text])
    if not len(tokens.ids):
        raise InputError(
            f"text: {tokenizer.spans.name} makes no token of {text[:40]!r}; give it some text"
        )
    stream = join_documents(tokens, 0, tokenizer.spans.prefix_ids, tokenizer.eos_id)
    return cut_rows(stream, len(stream.ids) - 1)[0]

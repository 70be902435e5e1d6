"""The tokens that a teacher chooses of a text, and the page of them that a run draws."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.alignment.mapping import Reason, align
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus
from vocagno.data.rows import Row, cut_rows, join_documents
from vocagno.errors import InputError, require
from vocagno.guidance.batches import Collator, line_ends
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import StudentOutput
from vocagno.guidance.pieces import ScoresInOrder, TeacherView
from vocagno.guidance.rules import UnitFacts, Units, unit_facts
from vocagno.guidance.tensors import LossSums
from vocagno.models.loading import (
    check_own_tokenizer,
    check_positions,
    load_student,
    local_device,
    student_settings,
    tokenizer_of_student,
)
from vocagno.system.files import appearing
from vocagno.teacher.live import LiveTeacher, TextTeacher
from vocagno.teacher.scoring import ConfiguredTeacher
from vocagno.tokens.buckets import buckets
from vocagno.tokens.student_tokenizer import StudentTokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.step import GuidedStudent
from vocagno.views.html import render_page
from vocagno.views.passage import Passage, StudentToken, Token, judged
from vocagno.views.texts import GuidedText

DOCUMENTS = 3
SHORTEST = 200
"""Characters; shorter documents are not drawn if there are longer ones."""
TOKENS = 200
"""Most tokens of a document that are shown, from its beginning."""

_NO_FACTS = [None] * len(UnitFacts._fields)
_UNPREDICTED: tuple[Any, ...] = (None, np.nan, 0.0, Reason.SPECIAL, *_NO_FACTS)
"""Loss, teacher loss, weight, reason and facts of the first token, which is not predicted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A document as a row."""

    title: str
    text: str
    row: Row


def choose_samples(
    corpus: Corpus, tokenizer: StudentTokenizer, seq_len: int, first_document: int = 0
) -> list[Sample]:
    """The first documents of the corpus that are not too short, or else the first ones.
    `first_document`: the number that its first one has in the run's rows."""
    shard = corpus.shards[0]
    found = corpus.read(shard)
    sizes = [len(text) for text in found.texts]
    longer = [number for number, size in enumerate(sizes) if size > SHORTEST]
    samples: list[Sample] = []
    for number in longer or [number for number, size in enumerate(sizes) if size]:
        tokens, refused = tokenizer.spans.try_encode([found.texts[number]])
        if refused:
            continue
        document = shard.first_document + number
        before, prompts = tokenizer.spans.prefix_ids, [found.prompt_bytes[number]]
        stream = join_documents(
            tokens, first_document + document, before, tokenizer.eos_id, prompts
        )
        row = cut_rows(stream, min(seq_len, TOKENS, len(stream.ids) - 1))[0]
        samples.append(Sample(f"Document {document}", found.texts[number], row))
        if len(samples) == DOCUMENTS:
            break
    return samples


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """Draws the teacher's choice in some documents, with the student as it is."""

    samples: Sequence[Sample]
    tokenizer: StudentTokenizer
    teacher: TokenSpans | None
    """For the strings of its tokens; None: they are not shown."""
    collator: Collator
    live: LiveTeacher | None = None

    @torch.no_grad()
    def passages(self, student: Any, device: torch.device) -> list[Passage]:
        """A passage for each document, by a `GuidedStudent`, wrapped or not. All processes call it:
        they may share one student."""
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
        row, view = sample.row, self.collator.aligned([sample.row])
        batch = self.collator([row])
        tensors, found = batch.to(device), dict[str, Any]()
        teacher_nll = view.teacher_nll
        if isinstance(self.live, TextTeacher) and batch.live is not None:
            nll_M = self.live.token_losses(batch.live, self.live.plan(batch.live))
            found = self.live.found(nll_M, batch.live)
            teacher_nll = nll_M.cpu().numpy()
        elif self.live is not None:  # it reads the row: a loss of each token but the first
            found = self.live.guide(None, tensors, [])
            predicted = found["teacher_loss"][0, : len(row.ids) - 1].cpu().numpy()
            teacher_nll = np.concatenate([[np.float32(np.nan)], predicted])
        # Groups without all losses are unmapped, but both sides are shown.
        shared = view.mapping if view.groups is None else align(row.spans, view.teacher_spans)
        shown = _shown(shared)
        end = max(
            int(spans[:, 1].max(initial=0)) for spans in (row.spans, view.teacher_spans[shown])
        )
        data = sample.text.encode()
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        units = batch.units_on(device, found.get("group_loss"))
        if found:  # otherwise the collator made the weight
            tensors = batch.with_live_losses(tensors, found, self.collator.method)
        output = student(**tensors)
        sums = LossSums.of(output.sums.cpu())  # of one row, which is one scope
        passage = Passage(
            title=sample.title,
            text=data[:end].decode(),
            student=self._student_tokens(row, tensors, units, batch.tensors["reasons"], output),
            teacher=self._teacher_tokens(sample, view, teacher_nll, shown),
            mapping=[
                (first - shown.start, stop - shown.start) if first >= 0 else (-1, -1)
                for first, stop in view.mapping.tolist()
            ],
            threshold=sums.threshold if sums.scopes == 1 else None,
        )
        return judged(passage, self.collator.guidance)

    def _student_tokens(
        self,
        row: Row,
        tensors: dict[str, Tensor],
        units: Units | None,
        reasons_BT: Tensor,
        output: StudentOutput,
    ) -> list[StudentToken]:
        losses_BT, groups_BT = tensors["teacher_loss"], tensors.get("groups")
        if units is not None and self.collator.guidance.unit == "group":
            groups_BT = units.groups_BT
        given = output.nll_BT, tensors["labels"], losses_BT, units, groups_BT
        facts = unit_facts(*given, self.collator.guidance)
        columns = output.nll_BT, losses_BT, output.weights_BT, reasons_BT, *facts
        count = len(row.ids) - 1
        nothing = [None] * count
        values = (
            [first, *(nothing if column is None else column[0, :count].tolist())]
            for first, column in zip(_UNPREDICTED, columns, strict=True)
        )
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
                neighbours_loss=_finite(heard),
            )
            for index, (start, end), nll, teacher, weight, reason, excess, heard in zip(
                row.ids.tolist(), row.spans.tolist(), *values, strict=True
            )
        ]

    def _reason(self, reason: int, teacher_loss: float) -> str:
        """In lower case; `partial` for a mapped token whose group lacks a teacher loss."""
        is_mapped = reason == Reason.MAPPED and self.collator.guidance.unit == "group"
        is_partial = is_mapped and not np.isfinite(teacher_loss)
        return "partial" if is_partial else Reason(reason).name.lower()

    def _teacher_tokens(
        self, sample: Sample, view: TeacherView, nll: NDArray[np.floating[Any]], shown: slice
    ) -> list[Token]:
        if self.teacher is None:
            ids = None
        elif view.windowed is not None:
            ids = view.windowed.tokens.ids[shown]
        elif self.live is not None:
            ids = sample.row.ids[shown]
        else:  # stored: of the whole document
            before = view.first_row
            ids = self.teacher.try_encode([sample.text])[0].ids
            ids = ids[before + shown.start : before + shown.stop]
        spans, losses = view.teacher_spans[shown].tolist(), nll[shown].tolist()
        found = []
        for place, ((start, end), loss) in enumerate(zip(spans, losses, strict=True)):
            index = None if ids is None else int(ids[place])
            named = index is not None and self.teacher is not None and self.teacher.token(index)
            text, loss = named or "", _finite(loss)
            found.append(Token(text=text, id=index, start=start, end=end, nll=loss))
        return found


def _shown(mapping: NDArray[np.int32]) -> slice:
    """The teacher's tokens from the first to the last to which a student token is mapped."""
    mapped = mapping[mapping[:, 0] >= 0]
    return slice(int(mapped[:, 0].min()), int(mapped[:, 1].max())) if len(mapped) else slice(0, 0)


def write_page(path: Path, passages: Sequence[Passage], step: int) -> None:
    html = render_page(
        title=f"What the teacher chose at step {step:,}",
        introduction=f"The first {TOKENS} tokens of a few documents, each ranked by itself, with "
        "the student as it was then.",
        summary_rows=[],
        passages=passages,
    )
    with appearing(path) as file:
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
        guidance: default: that of training. `scope` says nothing here: the text is a row of its
            own and is ranked by itself.
    Raises: InputError for a text without tokens to predict, that a tokenizer cannot read, or longer
        than the student reads; ConfigError for models that do not load, and for a method other
        than `vocagno`, `alm` and `distill`; BucketError for tokenizers that `distill` refuses.

    All that can be wrong with the text is found before any weights are read. The selection is that
    of training with stored scores: teacher losses are kept in float16. Of `distill` it shows
    where tokens start, not the distributions.
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
    model = load_student(student, settings, tokenizer.spans.vocabulary_size, seed=0)
    scores = ScoresInOrder(configured.load().score([text]))
    data, ends = DataConfig(train="one text", seq_len=length), line_ends(tokenizer.spans, guidance)
    shown = guidance
    if guidance.needs_candidates:  # the losses and groups of `alm` are the same
        shown = replace(guidance, method="alm", distill_where="surer")
    collator = Collator(scores, shown, data, ends)
    sampler = Sampler([Sample("The text", text, row)], tokenizer, configured.spans, collator)
    (passage,) = sampler.passages(GuidedStudent(model.to(device), shown), device)
    teacher_name = "/".join(filter(None, (teacher.model, teacher.gguf_file)))
    return GuidedText(str(student.model), teacher_name, guidance, judged(passage, guidance))


def _row(text: str, tokenizer: StudentTokenizer) -> Row:
    """The text between its BOS and EOS. Raises: InputError if no token of it is predicted."""
    tokens = tokenizer.spans.encode([text])
    if not len(tokens.ids):
        raise InputError(
            f"text: {tokenizer.spans.name} makes no token of {text[:40]!r}; give it some text"
        )
    stream = join_documents(tokens, 0, tokenizer.spans.prefix_ids, tokenizer.eos_id)
    return cut_rows(stream, len(stream.ids) - 1)[0]

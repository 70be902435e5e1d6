"""The tokens that a teacher chooses of one text: the selection of a training step on a row with
only this text."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from vocagno.config.data import DataConfig
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.student import StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.rows import Row, cut_rows, join_documents
from vocagno.errors import InputError, require
from vocagno.guidance.collator import Collator, line_ends
from vocagno.guidance.methods import method_of
from vocagno.models.loading import (
    check_own_tokenizer,
    check_positions,
    load_student,
    local_device,
    student_settings,
    teacher_spans,
)
from vocagno.teacher.corpus_scores import Teacher, load_teacher_of
from vocagno.teacher.scores import DocumentScores
from vocagno.tokens.student_tokenizer import StudentTokenizer, student_tokenizer
from vocagno.training.sample_pages import Sample, Sampler
from vocagno.training.student import GuidedStudent
from vocagno.views.guided_text import GuidedText


def guide_text(
    student: StudentConfig,
    teacher: TeacherConfig,
    text: str,
    guidance: GuidanceConfig | None = None,
    *,
    device: torch.device | None = None,
) -> GuidedText:
    """Loads both models and shows what the teacher chooses of a text.

    Args:
        student: with a `model`; weights are read in float32, as for training.
        guidance: default: that of training. `scope` says nothing here: the text is a row of its
            own and is ranked by itself.
        device: where both models are put; default: the accelerator, else the CPU.
    Raises: InputError for a text without tokens to predict, that a tokenizer cannot read, or longer
        than the student reads; ConfigError for models that do not load, and for a `guidance` other
        than `vocagno`.

    All that can be wrong with the text is found before any weights are read. The selection is that
    of training with stored scores: teacher losses are kept in float16.
    """
    guidance = guidance or GuidanceConfig()
    require(
        method_of(guidance).can_show_text,
        f"guidance.method: {guidance.method}: a text is shown as vocagno chooses; omit it",
    )
    require(student.model is not None, "student.model: needed, with weights that say something")
    device = device or local_device()
    tokenizer = student_tokenizer(student.tokenizer_source, student.eos)
    spans = teacher_spans(teacher)
    spans.encode([text])  # raises if it cannot be read
    length = len(_row(text, tokenizer).ids) - 1
    check_own_tokenizer(tokenizer.spans, student.model, "student")
    settings = student_settings(student, tokenizer.spans.vocabulary_size, seq_len=1)
    check_positions(settings, length, "text", "student")
    reader = load_teacher_of(teacher, spans, device)
    model = load_student(student, settings, tokenizer.spans.vocabulary_size, seed=0)
    guided = guide_loaded(model.to(device), tokenizer, reader, text, guidance)
    names = str(student.model), "/".join(filter(None, (teacher.model, teacher.gguf_file)))
    return replace(guided, student=names[0], teacher=names[1])


def guide_loaded(
    model: Any,
    tokenizer: StudentTokenizer,
    teacher: Teacher,
    text: str,
    guidance: GuidanceConfig | None = None,
) -> GuidedText:
    """As `guide_text`, with models that are loaded already (and texts that fit them).

    Args:
        model: a causal language model of transformers.
        teacher: of `load_teacher_of`, or any scorer behind a tokenizer.
    """
    guidance = guidance or GuidanceConfig()
    row = _row(text, tokenizer)
    (scores,) = teacher.score([text])
    if scores.missing:
        raise InputError(f"text: {teacher.reader.spans.name}: {scores.missing}")
    data = DataConfig(train="one text", seq_len=len(row.ids) - 1)
    ends = line_ends(tokenizer.spans, guidance)
    collator = Collator(_ScoresOfText(scores), guidance, data, ends)
    sampler = Sampler([Sample("The text", text, row)], tokenizer, teacher.reader.spans, collator)
    device = model.get_input_embeddings().weight.device
    (passage,) = sampler.passages(GuidedStudent(model, guidance), device)
    return GuidedText(tokenizer.source, teacher.reader.spans.name, guidance, passage)


@dataclass(frozen=True, slots=True)
class _ScoresOfText:
    """A store of scores that holds one document."""

    scores: DocumentScores

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """All of it, as `ScoreStore.piece` gives a document that is not very long."""
        return self.scores


def _row(text: str, tokenizer: StudentTokenizer) -> Row:
    """The text between its BOS and EOS, as `prepare` packs a document.

    Raises: InputError if no token of it is predicted.
    """
    tokens = tokenizer.spans.encode([text])
    if not len(tokens.ids):
        raise InputError(
            f"text: {tokenizer.spans.name} makes no token of {text[:40]!r}; give it some text"
        )
    stream = join_documents(tokens, 0, tokenizer.spans.prefix_ids, tokenizer.eos_id)
    return cut_rows(stream, len(stream.ids) - 1)[0]

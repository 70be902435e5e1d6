"""Some documents of the corpus as the guided student and its teacher see them, for the picture."""

import numpy as np
import torch

from vocagno.alignment import Reason, align
from vocagno.config import Config
from vocagno.corpus import scan
from vocagno.pictures.passage import Passage, StudentToken, TeacherToken
from vocagno.rows import cut_rows, join_documents
from vocagno.scores import ScoreStore
from vocagno.token_spans import TokenSpans
from vocagno.training.data import Collator
from vocagno.training.head import hidden_states, language_head
from vocagno.training.loading import teacher_spans
from vocagno.training.loop import final_folder
from vocagno.training.materials import cached_scores
from vocagno.training.selective import selective_cross_entropy
from vocagno.training.student_tokenizer import StudentTokenizer, student_tokenizer

DOCUMENTS = 3
LONGEST = 700
"""Characters of a document that still makes a good picture."""


def passages(config: Config) -> list[Passage]:
    """The first few short documents of the training text, as the trained student sees them."""
    from transformers import AutoModelForCausalLM

    corpus = scan(config.data.train, config.data.cache)
    scores, _ = cached_scores(
        config.teacher, corpus, config.data.cache, torch.device("cpu"), show_progress=False
    )
    tokenizer = student_tokenizer(str(config.student.tokenizer), config.student.eos)
    teacher = teacher_spans(config.teacher)
    model = AutoModelForCausalLM.from_pretrained(final_folder(config)).eval()
    texts = corpus.read(corpus.shards[0]).texts
    chosen = [i for i, text in enumerate(texts) if 200 < len(text) < LONGEST][:DOCUMENTS]
    return [
        _passage(f"Document {i}", texts[i], i, config, model, scores, tokenizer, teacher)
        for i in chosen
    ]


def _passage(
    title: str,
    text: str,
    document: int,
    config: Config,
    model: torch.nn.Module,
    scores: ScoreStore,
    tokenizer: StudentTokenizer,
    teacher: TokenSpans,
) -> Passage:
    """One document as a row of its own, through the collator and the weights of training."""
    tokens = tokenizer.spans.encode([text])
    stream = join_documents(tokens, document, tokenizer.spans.prefix_ids, tokenizer.eos_id)
    (row,) = cut_rows(stream, len(stream.ids) - 1)
    data = config.data.__class__(train=config.data.train, seq_len=len(row.ids) - 1)
    tensors = Collator(scores, config.guidance, data)([row]).tensors
    with torch.inference_mode():
        states = hidden_states(model, tensors["input_ids"])
        _, metrics = selective_cross_entropy(
            states, language_head(model), tensors["labels"], tensors["teacher_loss"],
            config.guidance,
        )  # fmt: skip
    assert metrics.nll_BT is not None
    known: list[tuple[float | None, float | None, float, str]]
    known = [(None, None, 0.0, "the first token is not predicted")]  # that is BOS
    known += [
        (float(loss), _finite(teacher_loss), float(weight), Reason(int(reason)).name.lower())
        for loss, teacher_loss, weight, reason in zip(
            metrics.nll_BT[0], tensors["teacher_loss"][0], metrics.weights_BT[0],
            tensors["reasons"][0], strict=True,
        )
    ]  # fmt: skip
    student = [
        StudentToken(
            text=tokenizer.spans.token(int(index)) or "", id=int(index),
            start=int(start), end=int(end),
            nll=loss, teacher_loss=teacher_loss, weight=weight, reason=reason,
        )
        for index, (start, end), (loss, teacher_loss, weight, reason) in zip(
            row.ids, row.spans, known, strict=True
        )
    ]  # fmt: skip
    return Passage(
        title=title, text=text, student=student,
        teacher=_teacher_tokens(text, document, scores, teacher),
        mapping=[
            (int(first), int(stop))
            for first, stop in align(row.spans, scores.document(document).spans)
        ],
    )  # fmt: skip


def _teacher_tokens(
    text: str, document: int, scores: ScoreStore, teacher: TokenSpans
) -> list[TeacherToken]:
    scored = scores.document(document)
    ids = teacher.encode([text]).ids
    return [
        TeacherToken(
            text=teacher.token(int(index)) or "", id=int(index),
            start=int(start), end=int(end), nll=_finite(loss),
        )
        for index, (start, end), loss in zip(ids, scored.spans, scored.nll, strict=True)
    ]  # fmt: skip


def _finite(value: np.float16 | torch.Tensor) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None

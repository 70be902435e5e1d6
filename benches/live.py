"""Measures how far a live teacher differs from stored scores.

A live teacher sees pieces of rows, and stored scores saw whole documents. Prints JSON,
one object a line.

    python benches/live.py CORPUS --model FOLDER [--gguf FILE] --tokenizer tinyllama.json.gz

For each length of a row: the difference of the teacher's loss for each student token, by how many
student tokens of the document stand before it in the row.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from machine import machine, print_lines
from vocagno.config.guidance import PAPERS_RULE
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import read_batches, scan
from vocagno.data.prepare import prepare_rows, prepare_texts
from vocagno.data.rows import RowStore
from vocagno.guidance.collator import Collator
from vocagno.models.loading import local_device
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.live import LivePieces, TextTeacher
from vocagno.teacher.score_store import MatchedScores
from vocagno.teacher.transformers_engine import load_scorer
from vocagno.tokens.student_tokenizer import student_tokenizer

LENGTHS = (256, 512, 1024, 2048)
CONTEXTS = (0, 16, 64, 256, 1024)
"""The least numbers of the classes by which tokens are counted: student tokens of the document that
stand before a token in its row."""


def lines(options: argparse.Namespace) -> Iterator[dict]:
    texts = next(read_batches(options.corpus))[: options.documents]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus_file = folder / "corpus.jsonl"
        corpus_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        config = TeacherConfig(model=str(options.model), gguf_file=options.gguf, mode="live")
        corpus, device = scan(corpus_file), local_device()
        teacher = ConfiguredTeacher(config, folder, device)
        scores = teacher.scores(lambda: corpus, None, show_progress=True)
        kept = prepare_texts(corpus, folder, show_progress=False)
        pieces = LivePieces(kept, teacher.reader)
        live = TextTeacher(load_scorer(config, teacher.spans, device), PAPERS_RULE, device)
        student = student_tokenizer(options.tokenizer, options.eos)
        for length in LENGTHS:
            rows, _ = prepare_rows(corpus, student, length, folder, show_progress=False)
            data = DataConfig(train=str(corpus_file), seq_len=length)
            yield compare(rows, MatchedScores(scores, rows), pieces, live, data)


def compare(
    rows: RowStore, stored: MatchedScores, pieces: LivePieces, live: TextTeacher, data: DataConfig
) -> dict:
    guidance = PAPERS_RULE
    collators = [Collator(scores, guidance, data) for scores in (stored, pieces)]
    differences, befores, stored_losses = [], [], []
    for index in range(len(rows)):
        row = rows[index]
        expected, batch = (collate([row]) for collate in collators)
        guided = live.guide(batch.live_text, {}, live.plan(batch.live_text))
        losses = guided["teacher_loss"][0].cpu().numpy()
        stored_loss = expected.teacher_loss[0].numpy()
        heads = np.repeat(np.cumsum(row.num_tokens) - row.num_tokens, row.num_tokens)
        before = (np.arange(len(row.ids)) - heads)[1:]
        both = np.isfinite(losses) & np.isfinite(stored_loss)
        differences.append((losses - stored_loss)[both])
        stored_losses.append(stored_loss[both])
        befores.append(before[both[: len(before)]])
    difference, before = np.concatenate(differences), np.concatenate(befores)
    return {
        "what": "live",
        "seq_len": data.seq_len,
        "tokens": len(difference),
        "mean_stored_loss": round(float(np.concatenate(stored_losses).mean()), 4),
        "mean_difference": round(float(difference.mean()), 4),
        "mean_absolute_difference": round(float(np.abs(difference).mean()), 4),
        "by_tokens_before": by_context(difference, before),
        **machine("torch", "transformers"),
    }


def by_context(difference: NDArray[np.float32], before: NDArray[np.int64]) -> dict[str, float]:
    """Mean absolute differences, by the tokens of the document that the row holds before."""
    means = {}
    for low, high in zip(CONTEXTS, (*CONTEXTS[1:], 1 << 40), strict=True):
        chosen = np.abs(difference[(before >= low) & (before < high)])
        if len(chosen):
            means[f"{low}+"] = round(float(chosen.mean()), 4)
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--eos", default="</s>")
    parser.add_argument("--documents", type=int, default=8)
    print_lines(lines(parser.parse_args()))


if __name__ == "__main__":
    main()

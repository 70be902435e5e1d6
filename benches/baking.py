"""Measures `vocagno bake` in one process: speed, memory, opening. JSON, an object a line.

    python benches/baking.py CORPUS --student tinyllama.json.gz --teacher pythia.json.gz

The documents of CORPUS, with a number in front so that no two are equal, are tokenized for the
student (BOS and EOS around each) into a `.npy`, and get drawn losses for the teacher's tokens. Each
kind is a process of its own; `tokens_per_cpu_second` counts its own CPU time, so that a busy
machine matters little. `peak_mb_above` is what baking adds to the loaded tokenizer and torch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from machine import machine, print_lines
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.corpus import read_batches, text_hash
from vocagno.data.store.building import finish_store
from vocagno.integrations.baked_files import BakedLosses
from vocagno.integrations.token_files import open_token_file
from vocagno.system.progress import peak_megabytes
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore, write_scores

KINDS = {"losses": ("token", None), "losses of groups": ("group", None), "weights": ("token", {})}
BOS, EOS = 1, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--student", required=True, help="a llama-like tokenizer.json(.gz)")
    parser.add_argument("--teacher", required=True, help="tokenizer.json(.gz)")
    parser.add_argument("--times", type=int, default=2, help="how often the corpus is repeated")
    parser.add_argument("--only", nargs=2, help="(of the processes) folder and kind")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(bake(options, Path(options.only[0]), options.only[1])))
        return
    texts = [text for batch in read_batches(options.corpus) for text in batch]
    print_lines(measure(options, texts, cut) for cut in (None, 600))


def measure(options: argparse.Namespace, texts: list[str], cut: int | None) -> dict:
    if cut is not None:
        texts = [text[at : at + cut] for text in texts for at in range(0, len(text), cut)]
    numbered = (f"{number} {text}" for number, text in enumerate(texts * options.times))
    line: dict = {"what": "bake", "characters": cut or "all"}
    with tempfile.TemporaryDirectory() as folder:
        line |= write(options, Path(folder), list(numbered))
        for kind in KINDS:
            words = [sys.executable, *sys.argv, "--only", folder, kind]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
            done = subprocess.run(words, check=True, capture_output=True, env=environment)
            line[kind] = json.loads(done.stdout)
    return line | machine("torch", "numpy")


def write(options: argparse.Namespace, folder: Path, texts: list[str]) -> dict:
    student, teacher = TokenSpans(options.student), TokenSpans(options.teacher)
    draw, names, ids = np.random.default_rng(0), [], []
    for first in range(0, len(texts), 500):
        part = texts[first : first + 500]
        tokens, other = student.encode(part), teacher.encode(part)
        documents = []
        for index in range(len(part)):
            ids.append(np.array([BOS, *tokens.ids[tokens.text(index)], EOS], np.uint16))
            spans = other.spans[other.text(index)]
            documents.append(DocumentScores(spans, draw.gamma(0.5, 3, len(spans))))
        names.append(f"shard-{first:06d}")
        hashes = [text_hash(text) for text in part]
        path = folder / "scores" / f"{names[-1]}.arrow"
        write_scores(path, hashes, documents, {"teacher": "drawn"})
    finish_store(folder / "scores", names, SCORES)
    np.save(folder / "tokens.npy", np.concatenate(ids))
    return {"documents": len(texts), "tokens": sum(map(len, ids))}


def bake(options: argparse.Namespace, folder: Path, kind: str) -> dict:
    from vocagno.integrations.baking.whole_file import bake_file

    unit, rule = KINDS[kind]
    student, store = TokenSpans(options.student), ScoreStore(folder / "scores")
    student.loses  # noqa: B018 - computed once
    file = open_token_file(folder / "tokens.npy", eos_id=EOS)
    weights = None if rule is None else GuidanceConfig(**rule)
    before, began, cpu = peak_megabytes() or 0, time.perf_counter(), time.process_time()
    bake_file(file, student, store, folder / kind, GuidanceConfig(unit=unit), weights)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    BakedLosses(folder / kind)
    return {
        "tokens_per_second": round(file.num_tokens / seconds),
        "tokens_per_cpu_second": round(file.num_tokens / cpu),
        "peak_mb_above": round((peak_megabytes() or 0) - before),
        "ms_to_open": round(1000 * (time.perf_counter() - began), 2),
    }


if __name__ == "__main__":
    main()

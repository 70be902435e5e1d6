"""Measures stores: bytes a token, opening, preparing. Each command prints JSON, one object a line.

    python benches/stores.py sizes CORPUS --tokenizer qwen2.5.json.gz
    python benches/stores.py opening
    python benches/stores.py prepare CORPUS --tokenizer tinyllama.json.gz --eos "</s>"
    python benches/stores.py reuse CORPUS STORE --tokenizers tinyllama.json.gz gpt2.json.gz
    python benches/stores.py all CORPUS --model FOLDER [--gguf FILE] \\
        --tokenizer tinyllama.json.gz --eos "</s>" --tokenizers tinyllama.json.gz gpt2.json.gz

`sizes` cuts real documents into ones of 40 and of 300 tokens. `opening` makes a store of 10,000
shards (links to one file). `prepare` runs the command with 1, 2, ... workers into empty caches and
extrapolates to 15 B tokens. `reuse` trains a small student with each tokenizer on the scores of one
store, and says what was covered.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from machine import machine, print_lines
from vocagno import TokenSpans
from vocagno.data.corpus import read_batches, scan, text_hash
from vocagno.data.store.format import Manifest, entry_of
from vocagno.teacher.score_store import DocumentScores, ScoreShard, ScoreStore, write_scores

ROOT = Path(__file__).parents[1]
DOCUMENT_TOKENS = (40, 300)
PAPER_TOKENS = 15e9
SHARDS = 10_000


def sizes(options: argparse.Namespace) -> dict:
    tokens = TokenSpans(options.tokenizer).encode(next(read_batches(options.corpus)))
    losses = np.random.default_rng(0).exponential(1.5, len(tokens.ids)).astype(np.float16)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (*DOCUMENT_TOKENS, None):
            places = [
                slice(start, min(start + size, text.stop) if size else text.stop)
                for text in map(tokens.text, range(len(tokens)))
                for start in range(text.start, text.stop, size or max(1, text.stop - text.start))
            ]
            whole = [place for place in places if not size or place.stop - place.start == size]
            documents = [_document(tokens.spans[place], losses[place]) for place in whole]
            hashes = [text_hash(str(number)) for number in range(len(documents))]
            path = Path(folder) / "shard.arrow"
            write_scores(path, hashes, documents, {"teacher": "bench"})
            count = sum(len(document.nll) for document in documents)
            figures[f"{size or 'whole'}"] = round(path.stat().st_size / count, 3)
    return {"what": "sizes", "bytes_per_token": figures, **machine("pyarrow", "tokenizers")}


def _document(spans: np.ndarray, losses: np.ndarray) -> DocumentScores:
    return DocumentScores(spans - spans[0, 0], losses)


def opening(options: argparse.Namespace) -> dict:
    rng = np.random.default_rng(0)
    ends = np.arange(1, 301, dtype=np.int32) * 4
    spans = np.stack([ends - 4, ends], axis=1)
    documents = [DocumentScores(spans, rng.exponential(1.5, 300)) for _ in range(100)]
    names = [f"shard-{number:05d}" for number in range(SHARDS)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first = folder / f"{names[0]}.arrow"
        hashes = [text_hash(str(number)) for number in range(len(documents))]
        write_scores(first, hashes, documents, {"teacher": "bench"})
        for name in names[1:]:
            (folder / f"{name}.arrow").hardlink_to(first)
        shard = ScoreShard(first)
        entry, description = entry_of(names[0], shard), shard.description
        entries = [replace(entry, name=name) for name in names]
        Manifest(description.kind, description.version, description.made_from, entries).save(folder)
        began = time.perf_counter()
        store = ScoreStore(folder)
        opened = time.perf_counter() - began
        places = rng.integers(0, len(store), 5000).tolist()
        reads = {}
        for turn in ("first", "again"):
            began = time.perf_counter()
            for place in places:
                store.document(place)
            reads[f"{turn}_read_us"] = round(1e6 * (time.perf_counter() - began) / len(places), 1)
        expected = documents[places[-1] % 100].nll.astype(np.float16)
        assert np.array_equal(store.document(places[-1]).nll, expected)
    return {
        "what": "opening",
        "shards": SHARDS,
        "documents": SHARDS * 100,
        "seconds": round(opened, 3),
        **reads,
        **machine("pyarrow"),
    }


def prepare(options: argparse.Namespace) -> dict:
    figures = {}
    for workers in options.workers:
        with tempfile.TemporaryDirectory() as cache:
            scan(options.corpus, Path(cache))
            command = [
                sys.executable,
                "-m",
                "vocagno",
                "prepare",
                options.corpus,
                "--json",
                "--tokenizer",
                options.tokenizer,
                "--eos",
                options.eos,
                "--cache",
                cache,
                "--workers",
                str(workers),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout)
        figures[str(workers)] = {
            "tokens_per_second": result["tokens_per_second"],
            "peak_memory_mb": result["peak_memory_mb"],
            "hours_for_15_b": round(PAPER_TOKENS / result["tokens_per_second"] / 3600, 2),
        }
    return {
        "what": "prepare",
        "tokens": result["tokens"],
        "workers": figures,
        **machine("pyarrow", "tokenizers"),
    }


def reuse(options: argparse.Namespace) -> dict:
    figures = {}
    for tokenizer in options.tokenizers:
        name = tokenizer.name.split(".")[0]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            command = [
                sys.executable,
                ROOT / "train.py",
                "--config",
                ROOT / "configs/real-text.yaml",
                "--student.tokenizer",
                tokenizer,
                "--teacher.scores",
                options.store,
                "--data.train",
                options.corpus,
                "--data.validation",
                "null",
                "--data.cache",
                Path(folder) / "cache",
                "--output",
                output,
                "--train.steps",
                options.steps,
                "--optimizer.warmup_steps",
                "1",
                "--train.log_every",
                "1",
                "--guidance.min_coverage",
                "0",
            ]
            subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
            lines = (output / "metrics.jsonl").read_text().splitlines()
            entries = [entry for entry in map(json.loads, lines) if "coverage" in entry]
            config = yaml.safe_load((output / "config.yaml").read_text())
        assert config["teacher"]["scores"] == str(options.store)
        figures[name] = {
            "smallest_coverage": min(entry["coverage"] for entry in entries),
            "smallest_scored": min(entry["scored"] for entry in entries),
            "predicted_tokens": sum(entry["tokens"] for entry in entries),
            "kept": round(float(np.mean([entry["kept_fraction"] for entry in entries])), 3),
        }
    store = ScoreStore(options.store)
    return {
        "what": "reuse",
        "teacher_tokens": store.num_tokens,
        "documents": len(store),
        "bytes_per_token": round(store.num_bytes / store.num_tokens, 3),
        "students": figures,
        **machine("torch", "transformers"),
    }


SCORED_DOCUMENTS = 24


def everything(options: argparse.Namespace) -> Iterator[dict]:
    """The runs whose figures stand in `docs/scores.md`; the model scores some documents for it."""
    for run in (sizes, opening, prepare):
        yield run(options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        some = folder / "some.jsonl"
        texts = next(read_batches(options.corpus))[:SCORED_DOCUMENTS]
        some.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        command = [
            sys.executable,
            "-m",
            "vocagno",
            "score",
            some,
            "--out",
            folder / "scores",
            "--cache",
            folder / "cache",
            "--teacher.model",
            options.model,
            *(["--teacher.gguf_file", options.gguf] if options.gguf else []),
        ]
        subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
        changes = {"corpus": str(some), "store": folder / "scores", "steps": 10}
        yield reuse(argparse.Namespace(**{**vars(options), **changes}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    runs = {"sizes": sizes, "opening": opening, "prepare": prepare, "reuse": reuse}
    for name, run in {**runs, "all": everything}.items():
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        if name != "opening":
            command.add_argument("corpus")
        if name in ("sizes", "prepare", "all"):
            command.add_argument("--tokenizer", required=True)
        if name in ("prepare", "all"):
            command.add_argument("--eos", required=True)
            command.add_argument("--workers", type=int, nargs="+", default=[1, 2])
        if name == "reuse":
            command.add_argument("store", type=Path)
            command.add_argument("--steps", type=int, default=10)
        if name in ("reuse", "all"):
            command.add_argument("--tokenizers", type=Path, nargs="+", required=True)
        if name == "all":
            command.add_argument("--model", required=True)
            command.add_argument("--gguf")
    options = parser.parse_args()
    print_lines(options.run(options))


if __name__ == "__main__":
    main()

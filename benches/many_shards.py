"""Measures a shard in a store of many thousands: making, the first look, finishing.

Prints JSON, one object a line.

    python benches/many_shards.py 1000 30000 200000 [--folder FOLDER]

All shards but the last hundred are there. They hold no documents, so that only the store is timed:
names, locks, partial files, notes, the manifest. Next to it, what it cost when partial files lay
among the shards: a list of a flat folder for each shard made; and what finishing costs when every
shard is read. The store is read afterwards, and compared with the one that was read shard by shard.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import patch

from machine import machine, print_lines
from vocagno.data.corpus import Corpus, CorpusShard, texts_hash
from vocagno.data.prepare import TEXTS, TextStore, write_texts
from vocagno.data.store import building
from vocagno.data.store.building import finish_store, make_store
from vocagno.data.store.format import MANIFEST, entry_of
from vocagno.data.store.shards import Shard
from vocagno.data.store.state import Claim, Notes, existing, named_shards, origin_of

MADE_FROM = {"format": "texts 1"}
LAST = 100
"""Shards that are made while the clock runs."""


def corpus_of(count: int) -> Corpus:
    """Makes a corpus of `count` shards without documents."""
    cut = (0, 0, 0, 0, 0, texts_hash(iter(())), "")
    shards = [CorpusShard(*cut, 0, 0)] * count
    return Corpus("empty", [], shards)


def make(shard: CorpusShard, path: Path, advance: building.Advance) -> None:
    write_texts(path, [], [], MADE_FROM)


def begin(folder: Path, corpus: Corpus) -> None:
    """Makes the store with all but its last shards, as killed processes leave it."""
    Claim(TEXTS.kind, corpus.fingerprint, len(corpus.shards), MADE_FROM).save(folder)
    names = list(named_shards(corpus))
    write_texts(folder / f"{names[0]}.arrow", [], [], MADE_FROM)
    data = (folder / f"{names[0]}.arrow").read_bytes()
    first, notes = Shard(folder / f"{names[0]}.arrow"), Notes(folder)
    entry, origin = entry_of(names[0], first), origin_of(first.description)
    for name in names[:-LAST]:
        path = folder / f"{name}.arrow"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    with patch.object(time, "time", lambda: 0.0):
        for name in names[:-LAST]:
            same = type(entry)(name, *(getattr(entry, f) for f in entry.__slots__[1:]))
            notes.add(same, 0.0, origin)


def measure(count: int, parent: Path | None) -> Iterator[dict]:
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        folder, corpus = Path(temporary) / "store", corpus_of(count)
        folder.mkdir()
        begin(folder, corpus)
        ends, finished = [time.perf_counter()], []

        def make_timed(shard: CorpusShard, path: Path, advance: building.Advance) -> None:
            ends.append(time.perf_counter())
            make(shard, path, advance)

        def finish(*arguments: object) -> object:
            began = time.perf_counter()
            manifest = finish_store(*arguments)  # type: ignore[arg-type]
            finished.append(time.perf_counter() - began)
            return manifest

        with patch.object(building, "finish_store", finish):
            make_store(corpus, folder, TEXTS, MADE_FROM, make_timed, show_progress=False)
        noted = (folder / MANIFEST).read_bytes()
        began = time.perf_counter()
        finish_store(folder, list(named_shards(corpus)), TEXTS)
        read = time.perf_counter() - began
        if (folder / MANIFEST).read_bytes() != noted or len(
            TextStore(folder).manifest.shards
        ) != count:
            raise SystemExit(f"{count} shards: the manifests differ")
        began = time.perf_counter()
        existing(folder, list(named_shards(corpus)))
        look = time.perf_counter() - began
        flat = Path(temporary) / "flat"
        flat.mkdir()
        for number in range(count):
            (flat / f"shard-{number:05d}.arrow").touch()
        lists = []
        for _ in range(5):
            began = time.perf_counter()
            list(flat.glob(".shard-00000.*.tmp"))
            lists.append(time.perf_counter() - began)
        shutil.rmtree(flat)
    gaps = [1e3 * (b - a) for a, b in pairwise(ends[1:])]
    yield {
        "what": "many shards",
        "shards": count,
        "ms_a_shard": round(median(gaps), 2),
        "ms_a_list_of_a_flat_folder": round(1e3 * median(lists), 2),
        "seconds_of_the_first_look": round(ends[1] - ends[0], 2),
        "seconds_of_looking_again": round(look, 2),
        "seconds_of_finishing": round(finished[0], 2),
        "seconds_of_finishing_by_reading": round(read, 2),
        **machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", type=int, nargs="+", help=f"how many, more than {LAST}")
    parser.add_argument(
        "--folder", type=Path, help="where the store is made; default: of the system"
    )
    options = parser.parse_args()
    if min(options.shards) <= LAST:
        parser.error(f"shards: expected more than {LAST}, got {min(options.shards)}")
    print_lines(line for count in options.shards for line in measure(count, options.folder))


if __name__ == "__main__":
    main()

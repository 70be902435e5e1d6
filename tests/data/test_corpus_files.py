"""Corpora at addresses: the same documents as in a folder."""

import gzip
import json

import pytest

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")

import pyarrow as pa
import pyarrow.parquet as pq

from families import TEXTS
from vocagno.data.corpus import scan
from vocagno.data.documents import CorpusError


@pytest.fixture
def folder(tmp_path):
    """A folder with a file of every kind, each with several shards."""
    lines = "".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(TEXTS))
    place = tmp_path / "corpus"
    place.mkdir()
    (place / "a.jsonl").write_text(lines)
    (place / "b.jsonl.gz").write_bytes(gzip.compress(lines.replace("0 ", "b ").encode()))
    with pa.CompressedOutputStream(str(place / "c.jsonl.zst"), "zstd") as file:
        file.write(lines.replace("1 ", "c ").encode())
    pq.write_table(pa.table({"text": [f"d {t}" for t in TEXTS]}), place / "d.parquet")
    (place / "e.txt").write_text("one document\nof two lines\n")
    (place / "readme.md").write_text("skipped")
    return place


@pytest.fixture
def address(folder):
    """The same files in memory."""
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        with system.open(f"/corpus/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    yield "memory://corpus"
    system.rm("/corpus", recursive=True)


def test_the_documents_are_those_of_a_folder(tmp_path, folder, address, capsys):
    here = scan(folder, tmp_path / "cache", shard_bytes=60)
    there = scan(address, tmp_path / "cache", shard_bytes=60)
    assert capsys.readouterr().err.count("skipped") == 2
    assert there.shards == here.shards
    assert len(there.shards) > len(there.sources) == 5
    texts = [there.read(shard).texts for shard in there.shards]
    assert texts == [here.read(shard).texts for shard in here.shards]
    backwards = [there.read(shard).texts for shard in reversed(there.shards)]
    assert backwards[::-1] == texts
    assert [source.name for source in there.sources[:1]] == ["memory:///corpus/a.jsonl"]


def test_one_file_and_a_change_of_it(tmp_path, address):
    name = f"{address}/a.jsonl"
    before = scan(name, tmp_path / "cache")
    assert scan(name, tmp_path / "cache").fingerprint == before.fingerprint
    with fsspec.open(name, "w") as file:
        file.write('{"text": "another"}\n')
    assert scan(name, tmp_path / "cache").documents == 1
    with pytest.raises(CorpusError, match="has changed since it was read"):
        before.read(before.shards[0])


def test_errors_name_the_address(address):
    with fsspec.open(f"{address}/bad.jsonl", "w") as file:
        file.write('{"text": "a"}\n{"no": 1}\n')
    for name, words in (
        ("memory://nowhere", r"memory://nowhere: no such file or folder"),
        (f"{address}/readme.md", r"memory://corpus/readme.md: expected a file named .jsonl"),
        (f"{address}/bad.jsonl", r"memory:///corpus/bad.jsonl, line 2"),
        ("nope://x", r"nope://x: ValueError: Protocol not known: nope"),
    ):
        with pytest.raises(CorpusError, match=words):
            scan(name)
    fsspec.filesystem("memory").mkdir("/empty")
    with pytest.raises(CorpusError, match=r"memory://empty: a folder without .jsonl"):
        scan("memory://empty")


def test_a_compressed_file_that_is_cut_short(address):
    system = fsspec.filesystem("memory")
    whole = system.cat_file("/corpus/b.jsonl.gz")
    system.pipe_file("/corpus/b.jsonl.gz", whole[:-20])
    with pytest.raises(CorpusError, match=r"b.jsonl.gz: the file is damaged or truncated"):
        scan(f"{address}/b.jsonl.gz")

"""Corpora at addresses: the same documents as in a folder."""

import gzip
import json
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.implementations.memory")

import pyarrow as pa
import pyarrow.parquet as pq

from families import TEXTS
from vocagno.data.corpus import scan
from vocagno.data.corpus_files import CorpusError, corpus_files


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
    yield in_memory(folder)
    fsspec.filesystem("memory").rm("/corpus", recursive=True)


def in_memory(folder):
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/corpus/{path.name}", path.read_bytes())
    return "memory://corpus"


@pytest.mark.parametrize(
    ("system", "first"),
    [
        ("memory", "memory:///corpus/a.jsonl"),
        pytest.param("s3", "s3://texts/corpus/a.jsonl", marks=pytest.mark.slow),
    ],
)
def test_the_documents_are_those_of_a_folder(tmp_path, folder, request, capsys, system, first):
    server = request.getfixturevalue("server") if system == "s3" else None
    address = server.put(folder, "corpus") if server else request.getfixturevalue("address")
    here = scan(folder, tmp_path / "cache", shard_bytes=60)
    there = scan(address, tmp_path / "cache", shard_bytes=60)
    assert capsys.readouterr().err.count("skipped") == 2
    assert there.shards == here.shards
    assert len(there.shards) > len(there.sources) == 5
    texts = [there.read_shard(shard).texts for shard in there.shards]
    assert texts == [here.read_shard(shard).texts for shard in here.shards]
    backwards = [there.read_shard(shard).texts for shard in reversed(there.shards)]
    assert backwards[::-1] == texts
    assert there.sources[0].name == first

    before = scan(f"{address}/a.jsonl", tmp_path / "cache")
    assert scan(f"{address}/a.jsonl", tmp_path / "cache").fingerprint == before.fingerprint
    (folder / "a.jsonl").write_text('{"text": "another"}\n')
    if server:
        server.put(folder, "corpus")
        server.become({"AccessKeyId": "tests", "SecretAccessKey": "tests"})  # as a new process
    else:
        in_memory(folder)
    assert scan(f"{address}/a.jsonl", tmp_path / "cache").documents == 1
    with pytest.raises(CorpusError, match=r"has changed since it was read|no longer exists"):
        before.read_shard(before.shards[0])


class Listing(fsspec.implementations.memory.MemoryFileSystem):
    """Files in memory behind a cache of listings, as S3 and the hub have one."""

    protocol = "listing"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("listing://", "memory://"))

    def ls(self, path, detail=True, **options):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **options)
        entries = self.dircache.get(path) or super().ls(path, detail=True, **options)
        return entries if detail else [entry["name"] for entry in entries]


def test_a_file_of_a_web_server_that_changes_is_another(folder):
    """fsspec's own mark of such a file is a hash of its address."""
    pytest.importorskip("aiohttp")
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        (file,) = corpus_files(f"http://127.0.0.1:{server.server_port}/a.jsonl")
        first = file.stamp()
        assert file.stamp() == first
        os.utime(folder / "a.jsonl", (0, 0))
        second = file.stamp()
        with (folder / "a.jsonl").open("a") as lines:
            lines.write('{"text": "one more"}\n')
        os.utime(folder / "a.jsonl", (0, 0))
        assert len({json.dumps(stamp) for stamp in (first, second, file.stamp())}) == 3
        (folder / "a.jsonl").unlink()
        with pytest.raises(OSError, match=r"a\.jsonl"):
            file.stamp()
        server.shutdown()


def test_a_file_that_another_process_adds_is_seen():
    fsspec.register_implementation("listing", Listing, clobber=True)
    writer = Listing(skip_instance_cache=True)
    for count in (1, 2):
        writer.pipe_file(f"/corpus/{count}.jsonl", b'{"text": "a"}')
        assert scan("listing://corpus").documents == count


def test_a_folder_or_a_hidden_file_at_an_address_is_no_file(address, capsys):
    system = fsspec.filesystem("memory")
    system.pipe_file("/corpus/.a.jsonl", b"")
    assert scan(address).documents
    assert "(hidden, or not .jsonl" in capsys.readouterr().err
    system.pipe_file("/corpus/part.parquet/0.parquet", b"")
    with pytest.raises(CorpusError, match=r"part\.parquet: expected a file, got a folder"):
        scan(address)


def test_errors_name_the_address(address):
    with fsspec.open(f"{address}/bad.jsonl", "w") as file:
        file.write('{"text": "a"}\n{"no": 1}\n')
    system = fsspec.filesystem("memory")
    system.pipe_file("/corpus/cut.jsonl.gz", system.cat_file("/corpus/b.jsonl.gz")[:-20])
    for name, words in (
        ("memory://nowhere", r"memory://nowhere: no such file or folder"),
        (f"{address}/readme.md", r"memory://corpus/readme.md: expected a file named .jsonl"),
        (f"{address}/bad.jsonl", r"memory:///corpus/bad.jsonl, line 2"),
        (f"{address}/cut.jsonl.gz", r"cut.jsonl.gz: the file is damaged or truncated"),
        ("nope://x", r"nope://x: ValueError: Protocol not known: nope"),
    ):
        with pytest.raises(CorpusError, match=words):
            scan(name)
    system.mkdir("/empty")
    with pytest.raises(CorpusError, match=r"memory://empty: a folder without .jsonl"):
        scan("memory://empty")


@pytest.mark.slow
def test_commands_and_training_with_s3(
    tmp_path, folder, server, tokenizer_files, teacher_model, monkeypatch, capsys
):
    """The stores have the same bytes as those in a folder, of a folder, and the runs the same
    losses, while the cache holds a part of the shards."""
    pytest.importorskip("torch")
    from folders import contents
    from runs import metrics, train_here, write_config
    from vocagno.cli.app import main

    monkeypatch.setattr("vocagno.data.corpus.SHARD_BYTES", 60)
    address = server.put(folder, "corpus")
    tokenizer = ["--tokenizer", str(tokenizer_files / "student.json"), "--eos", "</s>"]
    losses = []
    for name, corpus, store in (
        ("folder", str(folder), tmp_path / "stores"),
        ("s3", address, "s3://texts"),
    ):
        place = tmp_path / name
        cache = ["--cache", str(place / "cache")]
        rows = ["--out", f"{store}/rows", "--workers", "1", "--seq_len", "32"]
        assert main(["prepare", corpus, *tokenizer, *rows, *cache]) == 0
        score = ["score", corpus, "--teacher.model", str(teacher_model), *cache]
        score += ["--out", f"{store}/scores"]
        assert main(score) == 0
        if name == "s3":
            made = {kind: server.objects(kind) for kind in ("rows", "scores")}
            assert made == {kind: contents(tmp_path / "stores" / kind) for kind in made}
            largest = max(len(shard) for objects in made.values() for shard in objects.values())
            monkeypatch.setenv("VOCAGNO_CACHE_GB", str(3 * largest / 1e9))
        data = {"train": corpus, "validation": f"{corpus}/b.jsonl.gz", "rows": f"{store}/rows"}
        options = {"data": data, "teacher": {"scores": f"{store}/scores"}}
        options["train"] = {"steps": 2, "eval_every": 2, "log_every": 1}
        config = write_config(place, corpus, tokenizer_files, teacher_model, **options)
        assert train_here(config) == 0
        trained, validated = metrics(place / "run")
        losses += [
            [entry["loss"] for entry in trained] + [entry["validation_loss"] for entry in validated]
        ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert "scores: s3://texts/scores" in (place / "run" / "config.yaml").read_text()
    kept = [path.stat().st_size for path in (tmp_path / "here" / "objects").glob("*.arrow")]
    assert 0 < sum(kept) <= 3 * largest < sum(map(len, made["scores"].values()))
    verify = ["scores", "verify", "s3://texts/scores"]
    server.change("scores/shard-00001.arrow", b"nothing")
    capsys.readouterr()
    assert main(verify) == 1
    assert "s3://texts/scores/shard-00001.arrow: differs" in capsys.readouterr().out
    assert main([*verify, "--discard"]) == 0
    assert main(score) == 0
    assert server.objects("scores") == made["scores"]
    capsys.readouterr()
    assert main([*score, "--status", "--json"]) == 0
    assert '"finished": true' in capsys.readouterr().out


@pytest.mark.slow
def test_s3_without_rights(folder, server, tokenizer_files, capsys):
    """One line names the bucket and what to check."""
    from vocagno.cli.app import main

    address = server.put(folder, "corpus")
    nobody, lists = server.user(), server.user("s3:ListBucket")
    server.check_rights(on=True)
    check = "may list and read the bucket texts"
    for user, place, words in (
        (nobody, address, "PermissionError: Access Denied; check that the credentials in use"),
        (nobody, f"{address}/a.jsonl", "PermissionError: "),
        (None, address, "NoCredentialsError: "),
        ({"AccessKeyId": "x", "SecretAccessKey": "x"}, address, "The AWS Access Key Id you"),
        (lists, address, "/a.jsonl: cannot be read: [Errno 5] PermissionError: Forbidden"),
        (lists, f"{address}/d.parquet", "PermissionError: "),
    ):
        server.become(user)
        with pytest.raises(CorpusError) as caught:
            scan(place)
        message = str(caught.value)
        assert message.startswith(place), message
        assert words in message, message
        assert message.endswith(check), message
    server.become(nobody)
    student = ["--tokenizer", str(tokenizer_files / "student.json"), "--eos", "</s>"]
    for command in (["prepare", address, *student], ["score", address, "--teacher.model", "x"]):
        capsys.readouterr()
        assert main([*command, "--cache", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {address}: PermissionError: Access Denied; check")
    server.check_rights(on=False)
    server.become(nobody)
    with pytest.raises(CorpusError, match="s3://nothing/x: no such file or folder"):
        scan("s3://nothing/x")


@pytest.mark.slow
def test_s3_that_does_not_answer(folder, server):
    """Names the file, and the error of the file system, whose type is its own."""
    address = server.put(folder, "corpus")
    corpus = scan(address)
    server.stop()
    with pytest.raises(CorpusError, match=r"s3://texts/corpus/a.jsonl: cannot be read: \[Errno 5"):
        corpus.read_shard(corpus.shards[0])

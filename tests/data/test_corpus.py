"""Reading a corpus: what is a document, what is refused, and where."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("filelock")

import pyarrow.parquet as pq

import vocagno.data.corpus
from corpora import write_corpus
from folders import LFS_POINTER
from vocagno.data.corpus import scan, text_hash
from vocagno.data.corpus_files import CorpusError

TEXTS = ["first", "zweites ü", "", "line\u2028separators\u0085stay\ninside", "fifth"]


def all_texts(corpus):
    return [text for shard in corpus.shards for text in corpus.read_shard(shard).texts]


@pytest.mark.parametrize("packed", [False, True])
def test_shards_cut_between_documents(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(vocagno.data.corpus, "SHARD_BYTES", 10)
    path = write_corpus(tmp_path / "a.jsonl", TEXTS * 3)
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n", 2), encoding="utf-8")
    if packed:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "a.jsonl.gz"
        assert all_texts(scan(tmp_path)) == TEXTS * 6  # of both files
    corpus = scan(path)
    assert len(corpus.shards) > 3
    assert corpus.documents == len(TEXTS) * 3
    assert all_texts(corpus) == TEXTS * 3
    firsts = [shard.first_document for shard in corpus.shards]
    sizes = [shard.documents for shard in corpus.shards]
    assert firsts == [sum(sizes[:i]) for i in range(len(sizes))]


def test_the_index_is_kept_until_the_file_changes(tmp_path, monkeypatch):
    path, cache = write_corpus(tmp_path / "a.jsonl", TEXTS), tmp_path / "cache"
    first = scan(path, cache)
    with monkeypatch.context() as patch:
        patch.setattr(vocagno.data.corpus, "_cuts", lambda source: pytest.fail("read again"))
        assert scan(path, cache).shards == first.shards
    assert len(scan(path, cache, shard_bytes=10).shards) > len(first.shards) == 1
    write_corpus(path, [*TEXTS, "sixth"])
    assert scan(path, cache).documents == 6
    with pytest.raises(CorpusError, match=r"a\.jsonl: has changed since it was read"):
        first.read_shard(replace(first.shards[0], num_records=6))


@pytest.mark.parametrize(
    ("kilobytes", "size", "shards"), [(10, 2_000_000, 1), (100, 20_000, 5), (800, 50_000, 16)]
)
def test_a_small_corpus_has_small_shards(tmp_path, kilobytes, size, shards):
    """What a killed run loses is a sixteenth of the text; in any form of the file."""
    path = write_corpus(tmp_path / "a.jsonl", ["x" * 1000] * kilobytes)
    corpus = scan(path, tmp_path / "cache")
    assert (corpus.shard_bytes, len(corpus.shards)) == (size, shards)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert scan(tmp_path / "b.jsonl.gz").fingerprint == corpus.fingerprint


def write_as(folder, kind, texts):
    """The same documents in each of the forms a corpus may have."""
    lines = write_corpus(folder / "c.jsonl", texts).read_bytes()
    if kind == "jsonl":
        return folder / "c.jsonl"
    (folder / "c.jsonl").unlink()
    if kind == "gz":
        (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines))
        return folder / "c.jsonl.gz"
    if kind == "zst":
        path = folder / "c.jsonl.zst"
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(lines)
        return path
    if kind == "txt":
        for number, text in enumerate(texts):
            (folder / f"{number:03}.txt").write_bytes(text.encode())
        return folder
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    pq.write_table(table, folder / "c.parquet", row_group_size=2)
    return f"datasets:{folder}" if kind == "datasets" else folder / "c.parquet"


@pytest.mark.parametrize("kind", ["gz", "zst", "txt", "parquet", "datasets"])
def test_every_form_holds_the_same_documents(tmp_path, monkeypatch, kind):
    """In any order of shards: what is packed or stored in rows is entered anywhere."""
    if kind == "datasets":
        pytest.importorskip("datasets")
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(vocagno.data.corpus, "SHARD_BYTES", 10)
    texts = TEXTS * 3
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = scan(write_as(tmp_path / "a", "jsonl", texts))
    corpus = scan(write_as(tmp_path / "b", kind, texts), tmp_path / "cache")
    assert len(corpus.shards) > 3
    assert corpus.fingerprint == expected.fingerprint
    assert all_texts(corpus) == texts
    for shard in reversed(corpus.shards):
        again = scan(corpus.name, tmp_path / "cache").read_shard(shard)
        assert again.texts == corpus.read_shard(shard).texts
        assert again.hashes == [text_hash(text) for text in again.texts]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_prompts_and_completions(tmp_path, kind):
    pairs = [("Q: 1 + 1?\nA:", " 2"), ("", "no prompt"), ("é", "")]
    if kind == "jsonl":
        path = tmp_path / "p.jsonl"
        lines = [json.dumps({"prompt": prompt, "completion": end}) for prompt, end in pairs]
        path.write_text("\n".join(lines))
    else:
        path = tmp_path / "p.parquet"
        prompts, ends = zip(*pairs, strict=True)
        pq.write_table(pa.table({"prompt": prompts, "completion": ends}), path)
    corpus = scan(path)
    documents = corpus.read_shard(corpus.shards[0])
    assert documents.texts == ["Q: 1 + 1?\nA: 2", "no prompt", "é"]
    assert documents.prompt_bytes == [12, 0, 2]
    plain = scan(write_corpus(tmp_path / "t.jsonl", documents.texts))
    assert plain.fingerprint == corpus.fingerprint
    assert plain.prompt_fingerprint == "" != corpus.prompt_fingerprint


GOOD = b'{"text": "ok"}\n'
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", MARK + GOOD + b'{"text": "b"}\n' + MARK + b'{"text": "c"}\n'),
        ("x.jsonl", MARK + b"\n" + GOOD + b'{"text": "b"}\n{"text": "c"}'),
        ("x.jsonl.gz", gzip.compress(MARK + GOOD + b'{"text": "b"}\n{"text": "c"}\n', mtime=0)),
        (
            "x.jsonl",
            MARK + b'{"prompt": "o", "completion": "k"}\n{"text": "b"}\n{"text": "c"}\n',
        ),
    ],
)
def test_a_byte_order_mark_is_no_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert all_texts(scan(tmp_path / name, shard_bytes=1)) == ["ok", "b", "c"]
    (tmp_path / "y.txt").write_bytes(MARK + b"a text\n")
    assert all_texts(scan(tmp_path / "y.txt")) == ["a text\n"]


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("b.jsonl", "nowhere/c.jsonl", r"b\.jsonl: a link to nowhere/c\.jsonl, which is not there"),
        ("b.txt", "b.txt", r"b\.txt: a link to b\.txt, which is not there"),
        ("part.parquet", None, r"part\.parquet: expected a file, got a folder"),
    ],
)
def test_what_only_looks_like_a_file_of_the_folder_is_named(tmp_path, name, target, words):
    write_corpus(tmp_path / "a.jsonl", TEXTS)
    if target is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to(target)
        with pytest.raises(CorpusError, match=words):
            scan(tmp_path / name)
    with pytest.raises(CorpusError, match=words):
        scan(tmp_path)


def test_hidden_files_are_skipped_and_links_are_read(tmp_path, capsys):
    write_corpus(tmp_path / "elsewhere.jsonl", TEXTS)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    (tmp_path / "corpus" / "._a.jsonl").write_bytes(b"\x00\x05\x16\x07")  # of macOS
    assert all_texts(scan(tmp_path / "corpus")) == TEXTS
    message = "skipped (hidden, or not .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt): ._a.jsonl"
    assert message in capsys.readouterr().err
    write_corpus(tmp_path / ".b.jsonl", TEXTS)
    assert all_texts(scan(tmp_path / ".b.jsonl")) == TEXTS  # as it was named


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", GOOD + b"not json", r"x\.jsonl, line 2: .*not JSON"),
        ("x.jsonl", b"[" * 100_000, "line 1: .*not JSON"),
        ("x.jsonl", b'{"text": "\xff"}', "line 1: .*not JSON in UTF-8"),
        ("x.jsonl", GOOD + b'{"txt": "a"}', "line 2: .*`text`"),
        ("x.jsonl", b"[1]", "line 1: .*`text`"),
        ("x.jsonl", GOOD + b'{"text": 3}', "line 2: .*must be a string, got int"),
        ("x.jsonl", b'{"text": "\\ud800"}', "line 1: .*lone surrogate"),
        ("x.jsonl", b'{"prompt": ["a"], "completion": "b"}', "line 1: `prompt` must be a string, "),
        ("x.jsonl", b'\n{"text": ""}\n', "the corpus is empty"),
        (
            "x.jsonl.gz",
            gzip.compress(GOOD * 1000, mtime=0)[:50],
            r"x\.jsonl\.gz.*damaged or truncated",
        ),
        ("x.jsonl.zst", b"nothing", "damaged or truncated"),
        ("x.jsonl.gz", b"", r"x\.jsonl\.gz.*damaged or truncated: 0 bytes"),
        ("x.jsonl.zst", b"", r"x\.jsonl\.zst.*damaged or truncated: 0 bytes"),
        # A frame of zstd --long=31: magic, no flags, a window of 2 GiB, one raw block.
        (
            "x.jsonl.zst",
            b"\x28\xb5\x2f\xfd\x00\xa8\x79\x00\x00" + GOOD,
            r"x\.jsonl\.zst: was compressed with a window above 128 MiB .*zstd -dc --long=31",
        ),
        ("x.txt", LFS_POINTER, r"x\.txt: is a pointer to the file.* `git lfs pull`"),
        ("x.jsonl.gz", LFS_POINTER, r"x\.jsonl\.gz: is a pointer .* `git lfs pull`"),
        ("x.parquet", LFS_POINTER, r"x\.parquet: is a pointer .* `git lfs pull`"),
        ("x.jsonl", b"/annex/objects/SHA256E-s6--ab.jsonl\n", r"pointer .* `git annex get`"),
        ("x.csv", b"text\na", r"expected a file named \.jsonl"),
        ("x.txt", b"\xff", r"x\.txt: not text in UTF-8"),
        ("x.parquet", b"PAR1 no", "damaged or truncated"),
        ("x.parquet", pa.table({"a": [1]}), "column `text`"),
        ("x.parquet", pa.table([[1], [2]], ["text", "text"]), "one column `text`.* got text, text"),
        (
            "x.parquet",
            pa.table([["a"]] * 4, ["text", "text", "prompt", "completion"]),
            "one column `text`.* got text, text, prompt",
        ),
        ("x.parquet", pa.table({"text": ["a", None]}), r"x\.parquet, row 2: `text` .*got NoneType"),
    ],
)
def test_files_that_are_no_corpus_are_named(tmp_path, name, content, words):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        pq.write_table(content, tmp_path / name)
    with pytest.raises(CorpusError, match=words):
        scan(tmp_path / name)


def test_a_corpus_that_does_not_exist_is_named(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, words in (
        (tmp_path / "missing.jsonl", "no such file"),
        (tmp_path, "folder without"),
        (f"datasets:{tmp_path}/none", f"datasets:{tmp_path}/none: "),
    ):
        with pytest.raises(CorpusError, match=words):
            scan(name)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files by /proc")
@pytest.mark.parametrize("kind", ["jsonl", "gz", "zst", "parquet"])
def test_no_file_of_many_stays_open(tmp_path, kind):
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        made = Path(write_as(tmp_path / f"{number}", kind, TEXTS))
        made.rename(tmp_path / f"{number:02}{''.join(made.suffixes)}")
        (tmp_path / f"{number}").rmdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    corpus = scan(tmp_path, tmp_path.parent / f"{tmp_path.name}-cache")
    for shard in corpus.shards:
        corpus.read_shard(shard)
    assert len(corpus.shards) == 30
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_damaged_index_is_made_again(tmp_path):
    path, cache = write_corpus(tmp_path / "a.jsonl", TEXTS), tmp_path / "cache"
    expected = scan(path, cache).shards
    (index,) = (cache / "corpora").glob("*.json")
    for damaged in (b"", b"[]", index.read_bytes().replace(b"0", b"1", 1)):
        index.write_bytes(damaged)
        assert scan(path, cache).shards == expected

"""Reading a corpus: what is a document, what is refused, and where."""

import gzip
import json

import pytest

import vocagno.corpus
from conftest import write_corpus
from vocagno.corpus import CorpusError, scan

TEXTS = ["first", "zweites ü", "", "line\u2028separators\u0085stay\ninside", "fifth"]


def all_texts(corpus):
    return [text for shard in corpus.shards for text in corpus.texts(shard)]


def test_plain_packed_and_folder_read_alike(tmp_path):
    plain = write_corpus(tmp_path / "a.jsonl", TEXTS)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert all_texts(scan(plain)) == all_texts(scan(packed)) == TEXTS
    assert all_texts(scan(tmp_path)) == TEXTS + TEXTS
    assert scan(plain).fingerprint == scan(packed).fingerprint != scan(tmp_path).fingerprint


@pytest.mark.parametrize("packed", [False, True])
def test_shards_cut_between_documents(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(vocagno.corpus, "SHARD_BYTES", 10)
    path = write_corpus(tmp_path / "a.jsonl", TEXTS * 3)
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n", 2), encoding="utf-8")
    if packed:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "a.jsonl.gz"
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
        patch.setattr(vocagno.corpus, "_shards", lambda files: pytest.fail("read again"))
        assert scan(path, cache) == first
    write_corpus(path, [*TEXTS, "sixth"])
    assert scan(path, cache).documents == 6
    with pytest.raises(CorpusError, match="changed since"):
        first.texts(first.shards[0].__class__(**{
            **{name: getattr(first.shards[0], name) for name in first.shards[0].__slots__},
            "num_lines": 6,
        }))  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "not JSON"),
        ('{"txt": "a"}', "`text`"),
        ("[1]", "`text`"),
        ('{"text": 3}', "must be a string, got int"),
        ('{"text": "\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_named(tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"text": "ok"}) + "\n" + line + "\n")
    with pytest.raises(CorpusError, match=rf"bad\.jsonl, line 2: .*{words}"):
        scan(path)


def test_bytes_that_are_no_utf8(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(CorpusError, match="line 1: not JSON in UTF-8"):
        scan(path)


def test_what_is_not_there_or_empty(tmp_path):
    with pytest.raises(CorpusError, match="no such file"):
        scan(tmp_path / "missing.jsonl")
    with pytest.raises(CorpusError, match="folder without"):
        scan(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(CorpusError, match="the corpus is empty"):
        scan(tmp_path / "empty.jsonl")
    whole = gzip.compress(b'{"text": "a"}\n' * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"cut\.jsonl\.gz.*damaged or cut short"):
        scan(tmp_path / "cut.jsonl.gz")

"""Rows and scores on disk: what comes back, what is refused, what survives a failure."""

import gc
import hashlib
import json
import pickle
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import vocagno
from vocagno.data.corpus import text_hash
from vocagno.data.rows import ROWS, RowStore, cut_rows, join_documents, write_rows
from vocagno.data.store.building import finish_store
from vocagno.data.store.format import Manifest, entry_of
from vocagno.data.store.shards import Shard, StoreError, write_shard
from vocagno.system.files import write_json
from vocagno.teacher import candidate_frames
from vocagno.teacher import score_store as scores_module
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import (
    SCORES,
    DocumentScores,
    MatchedScores,
    ScoreShard,
    ScoreStore,
    write_scores,
)
from vocagno.tokens.token_spans import TokenizedTexts

MADE_FROM = {"teacher": "t", "tokenizer": "tok", "prefix": [], "unit": "nats"}


CANDIDATES = 3


@pytest.fixture(params=[0, CANDIDATES], ids=["losses", "candidates"])
def count(request):
    """Candidates of each token."""
    return request.param


def documents(seed=0, sizes=(3, 0, 300, 1), count=0):
    rng = np.random.default_rng(seed)
    result = []
    for size in sizes:
        lengths = rng.integers(0, 9, size)
        if size > 5:
            lengths[5] = 1000
        ends = np.cumsum(lengths)
        spans = np.stack([ends - lengths, ends], 1).astype(np.int32)
        nll = rng.exponential(2, size).astype(np.float16)
        nll[:1] = np.nan
        result.append(DocumentScores(spans, nll, candidates=drawn_candidates(nll, seed, count)))
    return result


def drawn_candidates(nll, seed, count):
    """For tokens with these losses; none for one without a loss."""
    if not count:
        return None
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 70_000, len(nll))
    ids = rng.permuted(np.tile(np.arange(60), (len(nll), 1)), axis=1)
    log_p = np.where(np.isnan(nll)[:, None], -np.inf, -2 - rng.random(ids.shape))[:, :count]
    return Candidates.of(tokens, np.where(np.isinf(log_p), -1, ids[:, :count]), log_p, 70_000)


def score_store(folder, names=("shard-00000", "shard-00001"), count=0):
    docs = [documents(seed, count=count) for seed in range(len(names))]
    for number, name in enumerate(names):
        hashes = [text_hash(f"{number} {i}") for i in range(len(docs[number]))]
        write_scores(folder / f"{name}.arrow", hashes, docs[number], made_from(count))
    finish_store(folder, names, SCORES)
    return [document for shard in docs for document in shard]


def made_from(count):
    return MADE_FROM | ({"candidates": count} if count else {})


def assert_same_candidates(candidates, expected):
    assert (candidates is None) == (expected is None)
    for name in Candidates.__slots__ if candidates else ():
        np.testing.assert_array_equal(getattr(candidates, name), getattr(expected, name))


def test_scores_come_back_by_document(tmp_path, count):
    expected = score_store(tmp_path, count=count)
    store = ScoreStore(tmp_path)
    assert store.candidates == count
    assert len(store) == 8
    assert store.num_tokens == sum(len(document.nll) for document in expected)
    for index in (7, 0, 2, 6, 5, 1, 3, 4):
        scores = store.document(index)
        np.testing.assert_array_equal(scores.nll, expected[index].nll)
        sizes = np.diff(expected[index].spans, axis=1)[:, 0]
        np.testing.assert_array_equal(scores.spans[sizes > 0], expected[index].spans[sizes > 0])
        assert scores.candidates is None  # nobody asked for them
        if count:
            scores = store.document(index, candidates=True)
            assert_same_candidates(scores.candidates, expected[index].candidates)
    with pytest.raises(IndexError):
        store.document(8)
    sent = pickle.dumps(store)  # it goes to a worker by name
    assert len(sent) < 500
    np.testing.assert_array_equal(pickle.loads(sent).document(2).nll, expected[2].nll)
    if not count:
        for ask in (store.document, lambda index, **options: store.piece(index, 0, 9, **options)):
            with pytest.raises(
                StoreError, match=r"has no candidates; `vocagno score --candidates`"
            ):
                ask(0, candidates=True)


def test_a_store_without_candidates_has_the_bytes_of_releases_that_had_none(tmp_path):
    ends = np.arange(1, 1001, dtype=np.int32) ** 2 // 40
    spans = np.stack([np.append(0, ends[:-1]), ends], 1)
    nll = (np.arange(1000) % 97 / 8).astype(np.float16)
    nll[::50] = np.nan
    docs = [DocumentScores(spans, nll, num_unscored=20), DocumentScores(spans[:0], nll[:0])]
    write_scores(tmp_path / "s.arrow", [bytes(16), bytes(range(16))], docs, MADE_FROM)
    finish_store(tmp_path, ["s"], SCORES)
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(tmp_path.glob("*.*")):
        digest.update(path.read_bytes())
    assert digest.hexdigest() == "5eab2d06a0f461b3ff28ed2a0b287386"


def test_what_is_not_as_its_inputs_say_is_not_written(tmp_path):
    """Nor what is no loss, such as a log-probability."""
    for kept, declared in ((CANDIDATES, 0), (0, CANDIDATES), (CANDIDATES, 4)):
        shard = [bytes(16)], documents(sizes=(3,), count=kept), made_from(declared)
        with pytest.raises(ValueError, match=rf"expected \(3, {declared}\)"):
            write_scores(tmp_path / "s.arrow", *shard)
    for kind in ("sampled", "entropy"):
        *shard, inputs = shard[0], documents(sizes=(3,), count=3), made_from(3) | {kind: True}
        with pytest.raises(ValueError, match=f"{kind} is False, and their inputs say True"):
            write_scores(tmp_path / "s.arrow", *shard, inputs)
    for loss in (-1.5, np.inf):
        scores = DocumentScores(np.array([[0, 1]], np.int32), np.array([loss], np.float16))
        with pytest.raises(ValueError, match="an infinite or negative loss"):
            write_scores(tmp_path / "s.arrow", shard[0], [scores], MADE_FROM)
    assert not list(tmp_path.glob("*.arrow"))


@pytest.mark.parametrize("kind", ["tiling", "holes", "shared", "empty"])
def test_a_piece_of_a_long_document_aligns_as_the_whole_does(tmp_path, monkeypatch, kind):
    """And has the candidates of its tokens, from some of 40 frames."""
    monkeypatch.setattr(scores_module, "_SHORT_DOCUMENT", 4)
    monkeypatch.setattr(candidate_frames, "BLOCK_TOKENS", 10)
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(1, 6, 400))
    spans = np.stack([np.append(0, ends[:-1]), ends], 1).astype(np.int32)
    if kind == "holes":
        spans = np.delete(spans, rng.integers(0, 400, 60), axis=0)
    elif kind == "shared":
        spans[100:300:2] = spans[101:301:2]
    elif kind == "empty":
        spans[rng.integers(1, 399, 60)] = 0
    nll = rng.exponential(1, len(spans)).astype(np.float16)
    nll[rng.integers(0, len(nll), 50)] = np.nan
    candidates = drawn_candidates(nll, 0, CANDIDATES)
    scores = [DocumentScores(spans, nll, candidates=candidates)]
    write_scores(tmp_path / "s.arrow", [bytes(16)], scores, made_from(CANDIDATES))
    finish_store(tmp_path, ["s"], SCORES)
    store = ScoreStore(tmp_path)
    whole = store.document(0)
    student_ends = np.cumsum(rng.integers(1, 9, 260))  # the teacher's text ends before
    student = np.stack([np.append(0, student_ends[:-1]), student_ends], 1).astype(np.int32)
    for _ in range(60):
        first, stop = np.sort(rng.choice(len(student) + 1, 2, replace=False))
        tokens = student[first:stop]
        piece = store.piece(0, int(tokens[0, 0]), int(tokens[-1, 1]))
        assert len(piece.nll) <= 5 * len(tokens) + 70
        asked = store.piece(0, int(tokens[0, 0]), int(tokens[-1, 1]), candidates=True)
        np.testing.assert_array_equal(asked.spans, piece.spans)
        rows = slice(piece.first_row, piece.first_row + len(piece.nll))
        assert_same_candidates(asked.candidates, candidates[rows])
        results = []
        for part in (whole, piece):
            mapping = vocagno.align(tokens, part.spans)
            losses = part.nll.astype(np.float32)
            reasons = vocagno.unmapped_reasons(tokens, part.spans, mapping, losses=losses)
            rows = np.where(mapping < 0, -1, mapping + part.first_row)
            results.append((rows, reasons, vocagno.reduce(losses, mapping)))
        for of_piece, expected in zip(*results[::-1], strict=True):
            np.testing.assert_array_equal(of_piece, expected)


@pytest.mark.parametrize(("length", "limit"), [(300, 3.5), (40, 5.0)])
def test_what_a_token_costs(tmp_path, length, limit):
    """Sees an encoding of losses or spans that has become larger."""
    docs = [documents(seed, sizes=(length,))[0] for seed in range(200)]
    hashes = [text_hash(str(i)) for i in range(200)]
    write_scores(tmp_path / "s.arrow", hashes, docs, MADE_FROM)
    assert (tmp_path / "s.arrow").stat().st_size / (200 * length) <= limit


def test_truncation_anywhere_is_seen_and_named(tmp_path):
    score_store(tmp_path)
    path = tmp_path / "shard-00000.arrow"
    data = path.read_bytes()
    for fiftieth in range(50):
        path.write_bytes(data[: len(data) * fiftieth // 50])
        store = ScoreStore(tmp_path)
        with pytest.raises(StoreError, match=r"bytes, but the manifest says .* truncated"):
            store.document(0)
        assert any("truncated" in message for _, message in store.damages())
        with pytest.raises(StoreError, match="not a complete vocagno shard"):
            Shard(path)
    path.unlink()
    store = ScoreStore(tmp_path)
    with pytest.raises(StoreError, match="the shard is missing"):
        store.document(0)
    assert [message for _, message in store.damages()] == [f"{path}: the shard is missing"]


@pytest.mark.slow
def test_a_flipped_bit_is_seen_wherever_it_is(tmp_path, count):
    """1,000 random bits of a shard, one after the other; each document is either refused or right.

    Bits that belong to no document (padding between columns) can only be seen by `damages`.
    """
    rng = np.random.default_rng(0)
    expected = score_store(tmp_path, names=("shard-00000",), count=count)
    path = tmp_path / "shard-00000.arrow"
    data = bytearray(path.read_bytes())
    refused = 0
    for bit in rng.choice(len(data) * 8, 1000, replace=False).tolist():
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        store = ScoreStore(tmp_path)
        assert list(store.damages())
        refusals = 0
        for number, document in enumerate(expected):
            try:
                scores = store.document(number, candidates=count > 0)
            except StoreError:
                refusals += 1
                continue
            assert_same_candidates(scores.candidates, document.candidates)
            np.testing.assert_array_equal(scores.nll, document.nll)
            full = document.spans[:, 0] < document.spans[:, 1]
            np.testing.assert_array_equal(scores.spans[full], document.spans[full])
        assert refusals or is_padding(path, bit // 8), f"bit {bit} changed nothing"
        refused += refusals > 0
        data[bit // 8] ^= 1 << bit % 8
    assert refused > 900
    path.write_bytes(data)
    assert list(ScoreStore(tmp_path).damages()) == []


def is_padding(path, place):
    """Whether a byte of a shard lies between its columns' buffers."""
    shard = Shard(path)
    buffers = [b for c in shard.batch.columns for b in c.buffers() if b is not None and b.size]
    starts = [b.address - shard._bytes.address for b in buffers]
    inside = any(s <= place < s + b.size for s, b in zip(starts, buffers, strict=True))
    return min(starts) <= place and not inside


@pytest.mark.slow
def test_a_flipped_bit_of_the_manifest_is_seen(tmp_path):
    """Every bit of it."""
    score_store(tmp_path, names=("s",))
    path = tmp_path / "manifest.json"
    data = bytearray(path.read_bytes())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"not a vocagno manifest|manifest is damaged"):
            ScoreStore(tmp_path)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.slow
def test_ten_thousand_shards_open_in_a_second(tmp_path):
    """And any document is there at once, without a file left open for each shard."""
    names = [f"shard-{number:05d}" for number in range(10_000)]
    expected = documents(0)
    hashes = [text_hash(str(i)) for i in range(len(expected))]
    write_scores(tmp_path / f"{names[0]}.arrow", hashes, expected, MADE_FROM)
    for name in names[1:]:
        (tmp_path / f"{name}.arrow").hardlink_to(tmp_path / f"{names[0]}.arrow")
    shard = ScoreShard(tmp_path / f"{names[0]}.arrow")
    entry, description = entry_of(names[0], shard), shard.description
    entries = [replace(entry, name=name) for name in names]
    Manifest(description.kind, description.version, description.made_from, entries).save(tmp_path)
    gc.freeze()  # else the collector walks what every test before this one has left
    try:
        began = time.process_time()  # of the processor: machines are shared
        store = ScoreStore(tmp_path)
        took = time.process_time() - began
    finally:
        gc.unfreeze()
    assert took < 1
    assert len(store) == 40_000
    files = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    for index in np.random.default_rng(0).integers(0, len(store), 3000).tolist():
        np.testing.assert_array_equal(store.document(index).nll, expected[index % 4].nll)
    if files:
        assert len(list(Path("/proc/self/fd").iterdir())) < files + 10


def test_another_store_is_refused_by_name(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="does not exist"):
        ScoreStore(tmp_path / "missing")
    with pytest.raises(StoreError, match="is unfinished"):
        ScoreStore(tmp_path)
    score_store(tmp_path)
    with pytest.raises(StoreError, match="holds scores, expected rows"):
        RowStore(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    write_json(tmp_path / "manifest.json", {**manifest, "version": 3})
    with pytest.raises(StoreError, match="the manifest is damaged"):
        ScoreStore(tmp_path)
    monkeypatch.setattr(scores_module, "VERSION", 3)
    score_store(tmp_path)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="format version 3, but this vocagno reads 2"):
        ScoreStore(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(StoreError, match="not a vocagno manifest"):
        ScoreStore(tmp_path)


def tokens_of(sizes, length=2):
    """Documents of tokens of `length` bytes each, ids counted up."""
    n = sum(sizes)
    spans = [(i * length, (i + 1) * length) for size in sizes for i in range(size)]
    cu = np.cumsum([0, *sizes])
    return TokenizedTexts(
        np.arange(10, 10 + n, dtype=np.int32),
        np.array(spans, np.int32).reshape(-1, 2),
        cu,
        np.ones(len(sizes), bool),
    )


def test_rows_by_hand():
    """BOS 1, EOS 2; documents of 3, 0 and 2 tokens; rows of 4 predicted tokens."""
    stream = join_documents(tokens_of([3, 0, 2]), 7, (1,), 2)
    assert stream.ids.tolist() == [1, 10, 11, 12, 2, 1, 2, 1, 13, 14, 2]
    rows = cut_rows(stream, 4)
    assert [row.ids.tolist() for row in rows] == [[1, 10, 11, 12, 2], [2, 1, 2, 1, 13], [13, 14, 2]]
    assert [row.documents.tolist() for row in rows] == [[7], [7, 8, 9], [9]]
    assert [row.num_tokens.tolist() for row in rows] == [[5], [1, 2, 2], [3]]
    assert rows[0].spans.tolist() == [[0, 0], [0, 2], [2, 4], [4, 6], [0, 0]]
    assert rows[2].spans.tolist() == [[0, 2], [2, 4], [0, 0]]
    predicted = [token for row in rows for token in row.ids[1:].tolist()]
    assert predicted == stream.ids[1:].tolist()  # every token once, but the very first


def row_store(folder, rows, seq_len=4):
    first = int(rows[0].documents[0])
    hashes = [text_hash(str(i)) for i in range(first, int(rows[-1].documents[-1]) + 1)]
    write_rows(folder / "s.arrow", rows, seq_len, 100, hashes, first, {})
    finish_store(folder, ["s"], ROWS)
    return RowStore(folder)


def test_rows_are_read_as_they_were_written(tmp_path):
    """Sees ids, documents or bytes of another row, and a special token that gets text."""
    rng = np.random.default_rng(0)
    tokens = tokens_of([5, 0, 11, 1, 2])
    spans = tokens.spans.copy()
    spans[6:8] = [[0, 700], [0, 700]]  # a long token, and two that share their bytes
    tokens = TokenizedTexts(tokens.ids, spans, tokens.cu_seqlens, tokens.proved)
    rows = cut_rows(join_documents(tokens, 3, (1,), 2), 4)
    assert rows[3].spans[1].tolist() == [6, 8]  # a row cut inside a document keeps its bytes
    store = row_store(tmp_path, rows)
    assert len(store) == len(rows)
    assert store.num_tokens == sum(len(row.ids) - 1 for row in rows)
    for index in rng.permutation(len(rows)):
        row, expected = store[int(index)], rows[index]
        np.testing.assert_array_equal(row.ids, expected.ids)
        np.testing.assert_array_equal(row.documents, expected.documents)
        np.testing.assert_array_equal(row.num_tokens, expected.num_tokens)
        full = expected.spans[:, 0] < expected.spans[:, 1]
        np.testing.assert_array_equal(row.spans[full], expected.spans[full])
        assert (row.spans[~full, 0] >= row.spans[~full, 1]).all()


def test_small_vocabularies_take_two_bytes_an_id(tmp_path):
    rows = cut_rows(join_documents(tokens_of([9]), 0, (), 2), 4)
    for size, width in ((1 << 16, 2), ((1 << 16) + 1, 4)):
        write_rows(tmp_path / "s.arrow", rows, 4, size, [bytes(16)], 0, {})
        assert Shard(tmp_path / "s.arrow").values("ids").itemsize == width


def test_prompts_by_hand(tmp_path):
    """BOS 1, EOS 2; tokens of 2 bytes; prompts of 3 bytes (inside id 11), of none, of all."""
    stream = join_documents(tokens_of([3, 2, 2]), 0, (1,), 2, [3, 0, 4])
    assert stream.ids.tolist() == [1, 10, 11, 12, 2, 1, 13, 14, 2, 1, 15, 16, 2]
    assert np.flatnonzero(stream.is_prompt).tolist() == [0, 1, 9, 10, 11]  # id 11 is learnt
    rows = cut_rows(stream, 5)
    assert [row.num_prompt.tolist() for row in rows] == [[2, 0], [0, 2], [2]]
    store = row_store(tmp_path, rows, 5)
    assert [store[i].num_prompt.tolist() for i in range(3)] == [[2, 0], [0, 2], [2]]


def test_scores_are_found_by_what_a_document_says(tmp_path):
    """Rows of documents 0 to 4; scores of 4, 2, other, 0: two are missing."""
    rows = cut_rows(join_documents(tokens_of([3, 1, 2, 5, 1]), 0, (), 2), 4)
    store = row_store(tmp_path / "rows", rows)
    order = [4, 2, 99, 0]
    scores = [DocumentScores(np.array([[0, 2]], np.int32), np.full(1, n)) for n in order]
    hashes = [text_hash(str(number)) for number in order]
    write_scores(tmp_path / "scores" / "s.arrow", hashes, scores, MADE_FROM)
    finish_store(tmp_path / "scores", ["s"], SCORES)
    matched = MatchedScores(ScoreStore(tmp_path / "scores"), store)
    losses = [matched.piece(number, 0, 2).nll.tolist() for number in range(5)]
    assert losses == [[0.0], [], [2.0], [], [4.0]]
    assert matched.missing_documents == 2
    _, tokens = store.documents()
    assert matched.missing_share == (tokens[1] + tokens[3]) / tokens.sum()
    sent = pickle.loads(pickle.dumps(matched))
    assert sent.piece(2, 0, 2).nll.tolist() == [2.0]


def test_a_shard_that_is_damaged_before_the_manifest_is_not_blessed(tmp_path):
    """A count or a document changed while the other shards were made."""
    score_store(tmp_path, names=("s",))
    path = tmp_path / "s.arrow"
    data = path.read_bytes()
    description = ScoreShard(path).description
    counts = {**description.counts, "documents": 5}
    batch = ScoreShard(path).batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    write_shard(path, columns, replace(description, counts=counts))
    with pytest.raises(StoreError, match="the shard's description is damaged; delete the shard"):
        finish_store(tmp_path, ["s"], SCORES)
    place = data.find(documents(0)[2].nll.tobytes())
    path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    with pytest.raises(StoreError, match="document 2 of this shard is damaged; delete the shard"):
        finish_store(tmp_path, ["s"], SCORES)


def test_a_shard_without_rows(tmp_path):
    """A single empty document: EOS alone predicts nothing."""
    hashes = [text_hash(str(number)) for number in range(2)]
    rows = cut_rows(join_documents(tokens_of([3]), 0, (), 2), 4)
    write_rows(tmp_path / "a.arrow", rows, 4, 100, hashes[:1], 0, {})
    none = cut_rows(join_documents(tokens_of([0]), 1, (), 2), 4)
    assert none == []
    write_rows(tmp_path / "b.arrow", none, 4, 100, hashes[1:], 1, {})
    finish_store(tmp_path, ["a", "b"], ROWS)
    store = RowStore(tmp_path)
    assert list(store.damages()) == []
    text_hashes, tokens = store.documents()
    assert tokens.tolist() == [4, 0]
    assert bytes(text_hashes[0]) == hashes[0]

"""Teachers compared on the same bytes, against plain loops over documents, bytes and lines."""

import json
import shutil
from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("rich")

from corpora import write_corpus
from drawn_spans import ordered_spans
from families import TEXTS
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.data.corpus import read_batches, text_hash
from vocagno.data.store.building import finish_store
from vocagno.data.store.shards import Refused
from vocagno.teacher.comparison import compare
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore, write_scores

REFUSED = DocumentScores.none("odd")


def write_store(folder, scores):
    """A store of two shards from the scores of each text."""
    items = list(scores.items())
    for name, part in (("a", items[: len(items) // 2]), ("b", items[len(items) // 2 :])):
        hashes = [text_hash(text) for text, _ in part]
        refused = [Refused(row, "x", "odd") for row, (_, doc) in enumerate(part) if doc is REFUSED]
        documents = [doc for _, doc in part]
        write_scores(folder / f"{name}.arrow", hashes, documents, {"teacher": "t"}, refused=refused)
    finish_store(folder, ["a", "b"], SCORES)
    return ScoreStore(folder)


def drawn_scores(rng, spans, without=0.0):
    """Losses of tokens; those without text and a share of the others have none."""
    spans = np.array(spans, np.int32).reshape(-1, 2)
    nll = rng.gamma(0.5, 3, len(spans)).astype(np.float16)
    nll[(spans[:, 0] >= spans[:, 1]) | (rng.random(len(spans)) < without)] = np.nan
    return DocumentScores(spans, nll)


def tokenized(tokenizer, texts, seed):
    """Drawn losses of each text under a tokenizer."""
    tokens, rng = TokenSpans(tokenizer).encode(texts), np.random.default_rng(seed)
    return {
        text: drawn_scores(rng, tokens.spans[tokens.text(number)], 0.05)
        for number, text in enumerate(texts)
    }


def stretches_of(size, sides):
    """Ends of the smallest runs of bytes between places that no token crosses, and the losses of
    all teachers there, if tokens of each cover all these bytes and have losses."""
    tokens = [
        [(a, b, float(nll)) for (a, b), nll in zip(side.spans.tolist(), side.nll, strict=True)]
        for side in sides
    ]
    tokens = [[span for span in side if span[0] < span[1]] for side in tokens]
    crossed = {at for side in tokens for a, b, _ in side for at in range(a + 1, b)}
    for start, end in pairwise(sorted(set(range(size + 1)) - crossed)):
        inside = [[span for span in side if start <= span[0] and span[1] <= end] for side in tokens]
        bytes_of = [{at for a, b, _ in side for at in range(a, b)} for side in inside]
        losses = [sum(nll for _, _, nll in side) for side in inside]
        if all(len(offsets) == end - start for offsets in bytes_of) and np.isfinite(losses).all():
            yield start, end, losses


def expected(texts, stores):
    """The fields of `Sums` by loops. Args: stores: of each teacher, the scores of its texts."""
    per_teacher, per_pair = np.zeros(len(stores)), np.zeros((len(stores), len(stores)))
    sums = {"documents": 0, "bytes": 0, "compared_bytes": 0, "nll": per_teacher, "mixture_nll": 0.0}
    sums |= {"ahead_bytes": per_pair, "ahead_nats": per_pair.copy()}
    counts = "missing_documents", "refused_documents", "partial_documents", "bytes_without_loss"
    sums |= {name: per_teacher.copy() for name in counts}
    for text in filter(None, texts):
        data = text.encode()
        sums["documents"] += 1
        sums["bytes"] += len(data)
        sides = [store.get(text) for store in stores]
        sums["missing_documents"] += [side is None for side in sides]
        sums["refused_documents"] += [side is REFUSED for side in sides]
        if any(side is None or side is REFUSED for side in sides):
            continue
        for teacher, side in enumerate(sides):
            scored = side.spans[np.isfinite(side.nll)].tolist()
            without = len(data) - len({at for a, b in scored for at in range(a, b)})
            sums["partial_documents"][teacher] += without > 0
            sums["bytes_without_loss"][teacher] += without
        lines = {}
        for start, end, losses in stretches_of(len(data), sides):
            sums["compared_bytes"] += end - start
            sums["nll"] += losses
            sums["mixture_nll"] -= log(sum(exp(-loss) for loss in losses) / len(losses))
            line = lines.setdefault(data[:start].count(b"\n"), np.zeros(len(stores) + 1))
            line += [*losses, end - start]
        for *losses, size in lines.values():
            for i, loss in enumerate(losses):
                for j, other_loss in enumerate(losses):
                    sums["ahead_bytes"][i, j] += size if loss < other_loss else 0
                    sums["ahead_nats"][i, j] += max(0, other_loss - loss)
    return sums


def assert_same(sums, texts, stores):
    for name, value in expected(texts, stores).items():
        np.testing.assert_allclose(getattr(sums, name), value, rtol=1e-9, err_msg=name)


@pytest.mark.slow
@settings(max_examples=15)  # files are synced; ten documents each
@given(data=st.data(), teachers=st.integers(2, 3), seed=st.integers(0, 99))
def test_odd_spans_give_what_loops_give(tmp_path_factory, data, teachers, seed):
    """Gaps, nested and repeated spans, tokens without a loss, documents that a store lacks or that
    its teacher could not read; documents in several lists."""
    rng = np.random.default_rng(seed)
    texts = [f"{n}" + "".join(rng.choice([*"ab\n"], 29 + n)) for n in range(10)]
    whole = drawn_scores(rng, [[0, 10], [10, len(texts[9])]])  # one text that all stores have
    stores = [{texts[9]: whole} for _ in range(teachers)]
    for text in texts[:9]:
        for store in stores:
            match data.draw(st.sampled_from(["scored"] * 6 + ["missing", "refused"])):
                case "scored":
                    store[text] = drawn_scores(rng, data.draw(ordered_spans()), 0.1)
                case "refused":
                    store[text] = REFUSED
    folder = tmp_path_factory.mktemp("stores")
    made = [write_store(folder / str(n), store) for n, store in enumerate(stores)]
    sums = compare(made, {"x": iter([texts[:2], ["", *texts[2:]]])})
    assert_same(sums["x"], texts, stores)


@pytest.fixture
def three(tmp_path, tokenizers):
    """Stores of three teachers with other tokenizers, two corpora, and what is in the stores."""
    texts = [f"{n}: {text}\n" + "\n".join(TEXTS[:n]) for n, text in enumerate(TEXTS[:12])]
    names = "byte-level", "llama", "unigram"
    scores = [tokenized(tokenizers[name], texts, seed) for seed, name in enumerate(names)]
    del scores[1][texts[3]]
    stores = [write_store(tmp_path / name, docs) for name, docs in zip(names, scores, strict=True)]
    parts = {"first": texts[:7], "second": ["", *texts[7:]]}
    files = {write_corpus(tmp_path / f"{name}.jsonl", part): part for name, part in parts.items()}
    return stores, files, scores


def test_three_tokenizers_and_two_corpora(three, capsys):
    """Sees a stretch that is cut elsewhere than tokens of all teachers end, and a figure of the
    command that differs from the one that loops over tokens and bytes give."""
    stores, files, scores = three
    corpora = {path.stem: read_batches(path) for path in files}
    sums = compare(stores, corpora)
    for path, texts in files.items():
        assert_same(sums[path.stem], texts, scores)
    assert sums["first"].missing_documents.tolist() == [0, 1, 0]
    assert 0.5 < sums["first"].compared_bytes / sums["first"].bytes < 1
    total = sums["first"] + sums["second"]
    assert_same(total, [text for texts in files.values() for text in texts], scores)

    names = [str(store.folder) for store in stores]
    command = ["scores", "compare", *names, "--corpus", *map(str, files)]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["total"] == total.as_dict(names)
    assert list(shown["corpora"]) == [str(path) for path in files]
    teacher = shown["total"]["teachers"][names[0]]
    assert teacher["nats_per_byte"] == total.nll[0] / total.compared_bytes
    lead = teacher["ahead_of"][names[2]]
    assert lead["share_of_bytes"] == total.ahead_bytes[0, 2] / total.compared_bytes
    assert lead["nats_per_byte"] == total.ahead_nats[0, 2] / total.ahead_bytes[0, 2]
    for store, row in zip(stores, shown["stores"], strict=True):
        size = sum(path.stat().st_size for path in store.folder.glob("*.arrow"))
        assert (row["bytes"], row["bytes_per_token"]) == (size, round(size / row["tokens"], 3))

    assert main(command) == 0
    blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
    assert [block[0].split(":")[0] for block in blocks[1:]] == [*map(str, files), "total"]
    cells = [f"{teacher['nats_per_byte']:.4f}", "-"]
    for lead in (teacher["ahead_of"][name] for name in names[1:]):
        cells += [f"{lead['share_of_bytes']:.1%}", "by", f"{lead['nats_per_byte']:.3f}"]
    cells += ["0", "0", str(teacher["partial_documents"])]
    assert blocks[-1][2].split() == ["1", names[0], *cells]
    assert blocks[-1][3].split()[-3] == "1"
    mixture = f"{shown['total']['mixture_nats_per_byte']:.4f}"
    assert blocks[-1][-1].split() == ["mixture", mixture]
    share = f"{total.compared_bytes / total.bytes:.2%} compared"
    assert blocks[-1][0] == f"total: {total.documents:,} documents, {total.bytes:,} bytes, {share}"
    sizes = shown["stores"][0]
    figures = [f"{sizes[name]:,}" for name in ("tokens", "bytes", "bytes_per_token")]
    assert blocks[0][1].split()[-3:] == figures


def test_a_teacher_given_twice_is_ahead_nowhere(three, tmp_path):
    stores, files, _ = three
    shutil.copytree(stores[0].folder, tmp_path / "copy")
    pair = [stores[0], ScoreStore(tmp_path / "copy")]
    for sums in compare(pair, {path.stem: read_batches(path) for path in files}).values():
        assert sums.nll[0] == sums.nll[1] == pytest.approx(sums.mixture_nll)
        assert not sums.ahead_bytes.any()
        assert not sums.ahead_nats.any()
        ahead = sums.as_dict(["a", "b"])["teachers"]["a"]["ahead_of"]
        assert ahead == {"b": {"share_of_bytes": 0, "nats_per_byte": None}}


def flip(path, needle):
    """Flips a bit of the first place that has these bytes."""
    data = bytearray(path.read_bytes())
    data[data.index(needle)] ^= 16
    path.write_bytes(data)


def test_what_cannot_be_compared_is_named(three, tmp_path, capsys):
    """A store given twice, a text given twice, damage and tokens outside their text would all give
    plausible sums."""
    stores, files, scores = three
    (first, second), names = files, [str(store.folder) for store in stores]
    empty, blank = tmp_path / "empty.jsonl", write_corpus(tmp_path / "blank.jsonl", ["", ""])
    empty.touch()
    other = write_corpus(tmp_path / "other.jsonl", ["another text", "and one more"])

    def refused(*words, stores=names[:2], corpora=(first,)):
        assert main(["scores", "compare", *stores, "--corpus", *map(str, corpora)]) == 2
        captured = capsys.readouterr()
        message = captured.err.splitlines()[-1]
        assert captured.out == ""
        assert all(word in message for word in words), message

    refused("expected two or more stores to compare, got 1", stores=names[:1])
    again = f"{tmp_path}/llama/../byte-level"
    refused("one store; name each teacher's", again, stores=[names[0], again])
    for again in (first, first.parent / "x" / ".." / first.name, first.parent):
        refused("is named twice, or its folder", corpora=[first, second, again])
    for path in (empty, blank):
        refused(f"{path}: the corpus is empty", corpora=[first, path])
    lacks = f"{names[0]} lacks 2 documents and could not read 0; {names[1]} lacks 2"
    refused(f"{other}: none of its 2 documents", lacks, "run `vocagno score`", corpora=[other])
    refused("this store of scores does not exist", stores=[names[0], str(tmp_path / "none")])

    text = next(iter(scores[0]))
    flip(stores[1].folder / "a.arrow", text_hash(text))
    refused(f"{names[1]}/a.arrow: its hashes or counts are damaged")
    flip(stores[1].folder / "a.arrow", bytes([text_hash(text)[0] ^ 16]) + text_hash(text)[1:])
    flip(stores[1].folder / "a.arrow", scores[1][text].nll.tobytes())
    refused(f"{names[1]}/a.arrow: document 0 of this shard is damaged", "--discard")

    long = {text: DocumentScores(np.array([[0, 10_000]], np.int32), np.ones(1, np.float16))}
    outside = str(write_store(tmp_path / "outside", long).folder)
    refused(f"{outside}: tokens of the document '{text[:9]}", stores=[names[0], outside])

"""Texts whose noise is known: scores that keep all but the noise, and what a run trains on."""

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from families import TEXTS
from research.known_scores import DROPPED, KEPT, at_random, oracle, write_oracle, write_random
from research.noise_kept import noise_kept, noise_tokens
from research.study_text import NoisyText, main, read_noise, with_junk, with_swaps
from runs import metrics, train_here
from vocagno.data.corpus import scan
from vocagno.data.prepare import prepare_rows
from vocagno.errors import InputError
from vocagno.tokens.student_tokenizer import student_tokenizer

KNOWN = {"top_fraction": None, "max_threshold": -100.0}
"""Guidance under which known scores say which tokens are trained on."""


def write_noisy(path):
    """Documents with lines of junk, swapped words, no noise, nothing but noise, and no text."""
    rng = random.Random(0)
    documents = [list(with_junk(f"{text}\n" * 2, rng)) for text in TEXTS[:6]]
    documents += [list(with_swaps(text, rng, ["café", "prime", "x"])) for text in TEXTS[:6]]
    documents += [[(TEXTS[0], False)], [("junk", True)], []]
    with path.open("w") as file:
        for pieces in documents:
            noise, place = [], 0
            for text, is_noise in pieces:
                size = len(text.encode())
                noise += [[place, place + size]] * is_noise
                place += size
            row = {"text": "".join(text for text, _ in pieces), "noise": noise}
            file.write(json.dumps(row) + "\n\n")
    return path


@pytest.fixture
def corpus(tmp_path):
    return write_noisy(tmp_path / "noisy.jsonl")


@pytest.fixture
def train(tmp_path, config):
    """Trains a step on a noisy text under known scores; the run's folder."""

    def train(num_rows=8, **guidance):
        path = config(
            train={"steps": 1, "global_batch": num_rows, "micro_batch": num_rows},
            teacher={"model": None, "scores": str(tmp_path / "known")},
            guidance={**KNOWN, **guidance},
        )
        assert train_here(path) == 0
        return tmp_path / "run"

    return train


def expected_noise(rows, documents):
    """Of the predicted tokens of all rows, those that share a byte with noise: by loops."""
    flags = []
    for row in rows:
        tokens = []
        for document, count in zip(row.documents, row.num_tokens, strict=True):
            is_noise = [False] * len(documents[document].text.encode())
            for start, stop in documents[document].noise_N2:
                is_noise[start:stop] = [True] * int(stop - start)
            first = len(tokens)
            for start, stop in row.spans[first : first + count]:
                tokens.append(any(is_noise[start:stop]))
        flags += tokens[1:]  # the first token of a row is not predicted
    return flags


@pytest.mark.slow
def test_the_oracle_trains_on_all_but_noise(tmp_path, corpus, train, tokenizer_files):
    write_oracle(corpus, tmp_path / "known")
    tokenizer = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    cache = tmp_path / "cache"
    store, _ = prepare_rows(scan(corpus, cache), tokenizer, 32, cache, show_progress=False)
    rows = [store[number] for number in range(len(store))]
    documents = read_noise(corpus)
    noise = expected_noise(rows, documents)
    assert 0.2 < np.mean(noise) < 0.8
    flags = noise_tokens(rows, documents, 32)
    flags = [row[: len(of.ids) - 1] for row, of in zip(flags, rows, strict=True)]
    assert np.concatenate(flags).tolist() == noise
    run = train(len(rows))  # one step, of every row once
    (entry,) = metrics(run)[0]
    assert entry["tokens"] == len(noise)
    assert entry["kept_fraction"] * len(noise) == pytest.approx(len(noise) - sum(noise), abs=0.1)
    counts = {"noise_tokens": sum(noise), "other_tokens": len(noise) - sum(noise)}
    weights = {"weight_of_noise": 0.0, "weight_of_others": 1.0, "noise_in_weight": 0.0}
    assert noise_kept(run, 10_000) == {"run": "run", "rows": len(rows)} | counts | weights


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.88, 0.4])
def test_random_scores_keep_the_share(tmp_path, corpus, train, share):
    text = " ".join(f"word{number} is {number % 7}" for number in range(1500))
    corpus.write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": text[5:]}) + "\n")
    write_random(corpus, tmp_path / "known", share, seed=3)
    stats = noise_kept(train(), 10_000)
    assert stats["noise_tokens"] == 0
    assert stats["weight_of_noise"] is None
    assert stats["weight_of_others"] == pytest.approx(share, abs=0.02)


def test_a_text_is_split_into_kept_and_dropped_spans():
    """Stretches of text, and words with the white space before them."""
    document = NoisyText("ab é noise\nx", np.array([[2, 3], [3, 5], [7, 9]]))
    scores = oracle(document)
    assert scores.spans.tolist() == [[0, 2], [2, 3], [3, 5], [5, 7], [7, 9], [9, 13]]
    assert scores.nll.tolist() == [KEPT, DROPPED, DROPPED, KEPT, DROPPED, KEPT]
    assert oracle(NoisyText("", np.empty((0, 2), np.int64))).spans.shape == (0, 2)
    words = at_random("Né  two\n\n x ", 0.5, seed=0)
    assert words.spans.tolist() == [[0, 3], [3, 8], [8, 9], [9, 10], [10, 12], [12, 13]]
    draws = [at_random("a b c d e f g h", 0.5, seed).nll.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_ranges_out_of_order_are_refused(tmp_path):
    path = tmp_path / "noisy.jsonl"
    for noise in ([[3, 5], [1, 2]], [[1, 3], [2, 4]], [[1, 1]]):
        path.write_text(json.dumps({"text": "abcdef", "noise": noise}) + "\n")
        with pytest.raises(InputError, match="empty or out of order"):
            read_noise(path)


@pytest.mark.slow
def test_runs_without_a_choice_train_on_noise(train):
    stats = noise_kept(train(method="cpt", top_fraction=0.4, max_threshold=None), 3)
    assert stats["rows"] == 3
    assert stats["weight_of_noise"] == stats["weight_of_others"] == 1.0
    share = stats["noise_tokens"] / (stats["noise_tokens"] + stats["other_tokens"])
    assert stats["noise_in_weight"] == pytest.approx(share, abs=1e-4)


def test_each_part_of_a_study_has_its_documents_clean_and_with_each_noise(tmp_path, monkeypatch):
    """A loop that overwrote its table of noises wrote `dev` and failed at `test`."""
    for name in ("train", "valid"):
        texts = [f"{name} {number}: " + "some words of a text\n" * 20 for number in range(40)]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    files = [str(tmp_path / f"{name}.jsonl") for name in ("train", "valid")]
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["", *files, str(out), "--dev", "0.004", "--test", "0.004"])
    main()
    for part in ("dev", "test"):
        clean = [text.text for text in read_noise(out / f"{part}-clean.jsonl")]
        assert len(clean) > 2
        for kind in ("junk", "pages"):
            noisy = read_noise(out / f"{part}-{kind}.jsonl")
            assert len(noisy) == len(clean)
            for document, text in zip(noisy, clean, strict=True):
                encoded, kept, start = document.text.encode(), b"", 0
                for first, end in document.noise_N2:
                    kept, start = kept + encoded[start:first], end
                assert text.split() == (kept + encoded[start:]).decode().split()
        assert len(read_noise(out / f"{part}-swap.jsonl")) == len(clean)
    # A student must not have read the text that it is to learn, or is measured on.
    names = "dev-clean", "test-clean", "pretrain", "reference", "valid-dev", "valid-test"
    parts = [{text.text for text in read_noise(out / f"{name}.jsonl")} for name in names]
    assert all(parts)
    assert len(set().union(*parts)) == sum(map(len, parts)) == 80

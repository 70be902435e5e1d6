"""Runs on several corpora: what is trained on, what is held out, and the scores of each."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from runs import TRAIN, cut_back, final_weights, metrics, run, train_here
from vocagno.cli.app import main as vocagno
from vocagno.data.rows import MixedPieces, MixedRows, RowStore

pytestmark = pytest.mark.slow

OTHER = [f"Line {n} of another corpus, with {n * n} in it." for n in range(40)]
LOSS = {"train": {"steps": 6, "global_batch": 8, "micro_batch": 4, "checkpoint_every": 2}}


@pytest.fixture
def corpora(tmp_path, corpus):
    return [str(corpus), str(write_corpus(tmp_path / "other.jsonl", OTHER))]


def mixture(config, corpora, output, **sections):
    data = {"train": dict(zip(corpora, (0.75, 0.25), strict=True))}
    data |= {"validation": {"first": corpora[0], "second": corpora[1]}}
    output = str(config().parent / output)
    return config(**(LOSS | {"data": data, "output": output} | sections))


def losses(folder):
    training, validation = metrics(folder)
    return [entry["loss"] for entry in training], [
        entry["validation_losses"] for entry in validation
    ]


def test_a_mixture_does_not_depend_on_processes_or_restarts(tmp_path, config, corpora, capfd):
    assert train_here(mixture(config, corpora, "one")) == 0
    told = capfd.readouterr().err
    assert f"{corpora[0]}: 75 % of the rows, 2.77 epochs; " in told
    one = losses(tmp_path / "one")

    run(2, TRAIN, "--config", mixture(config, corpora, "two"))
    two = losses(tmp_path / "two")
    np.testing.assert_allclose(two[0], one[0], rtol=1e-4)
    for mine, theirs in zip(one[1], two[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)

    path = mixture(config, corpora, "again")
    cut_back(tmp_path / "one", tmp_path / "again")
    config_of = (tmp_path / "one" / "config.yaml").read_text()
    (tmp_path / "again" / "config.yaml").write_text(config_of.replace("one\n", "again\n"))
    assert train_here(path) == 0
    again, whole = final_weights(tmp_path / "again"), final_weights(tmp_path / "one")
    assert all((again[name] == whole[name]).all() for name in whole)


def test_held_out_losses_are_those_of_each_text(tmp_path, config, corpora, capfd):
    assert train_here(mixture(config, corpora, "run")) == 0
    last = metrics(tmp_path / "run")[1][-1]
    told = capfd.readouterr().err
    assert "first {first:.4f}, second {second:.4f})".format(**last["validation_losses"]) in told
    sizes = {}
    for name, held_out in zip(("first", "second"), corpora, strict=True):
        path = mixture(config, corpora, name, data={"train": corpora[0], "validation": held_out})
        assert train_here(path, "--train.steps", "1") == 0
        (entry,) = metrics(tmp_path / name)[1]
        assert "validation_losses" not in entry
        sizes[name] = entry["validation_tokens"]
    total = sum(sizes[name] * loss for name, loss in last["validation_losses"].items())
    assert last["validation_loss"] == pytest.approx(total / sum(sizes.values()))
    assert last["validation_tokens"] == sum(sizes.values())


def test_rows_and_their_scores_belong_together(tmp_path, config, corpora):
    """The losses of a mixture are those of the row and its scores in the corpus that it is of."""
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import DataConfig
    from vocagno.guidance.batches import Collator
    from vocagno.teacher import MatchedScores, ScoreStore

    assert train_here(mixture(config, corpora, "run"), "--train.steps", "1") == 0
    stores = [RowStore(folder) for folder in sorted((tmp_path / "cache" / "rows").iterdir())]
    matched = []
    for rows in stores:
        found = [ScoreStore(path) for path in (tmp_path / "cache" / "scores").iterdir()]
        (store,) = [one for one in found if one.text_hashes == rows.text_hashes]
        matched.append(MatchedScores(store, rows))
    mixed = MixedRows({str(n): store for n, store in enumerate(stores)})
    assert len(mixed) == sum(map(len, stores))
    scores = MixedPieces(matched, mixed.document_ends)
    data, guidance = DataConfig(train="unused", seq_len=32), GuidanceConfig(top_fraction=0.4)
    together = Collator(scores, guidance, data)
    for corpus, (rows, of_rows) in enumerate(zip(stores, matched, strict=True)):
        alone = Collator(of_rows, guidance, data)
        for number in range(len(rows)):
            index = number + (len(stores[0]) if corpus else 0)
            assert mixed.place(index) == (str(corpus), number)
            one, other = alone([rows[number]]).tensors, together([mixed[index]]).tensors
            assert all(one[name].equal(other[name]) or name == "teacher_loss" for name in one)
            np.testing.assert_array_equal(one["teacher_loss"], other["teacher_loss"])
            assert one["teacher_loss"].isfinite().any()
    with pytest.raises(IndexError):
        mixed[len(mixed)]


def test_stores_of_scores_for_each_corpus_or_one_for_all(tmp_path, config, corpora, teacher_model):
    together = tmp_path / "together.jsonl"
    together.write_bytes(b"".join(Path(corpus).read_bytes() for corpus in reversed(corpora)))
    names = []
    for number, text in enumerate([*corpora, together]):
        names.append(str(tmp_path / f"scores-{number}"))
        words = ["score", str(text), "--teacher.model", str(teacher_model), "--out", names[-1]]
        assert vocagno([*words, "--cache", str(tmp_path / "cache")]) == 0
    assert train_here(mixture(config, corpora, "cached")) == 0
    for output, stores in (("each", names[:2]), ("all", names[2])):
        path = mixture(config, corpora, output, teacher={"model": None, "scores": stores})
        assert train_here(path) == 0
        assert losses(tmp_path / output) == losses(tmp_path / "cached")
    path = mixture(config, corpora, "wrong", teacher={"model": None, "scores": names})
    assert train_here(path) == 2


def test_rows_that_were_made_for_each_corpus(tmp_path, config, corpora, tokenizer_files):
    folders = []
    for number, text in enumerate(corpora):
        folders.append(str(tmp_path / f"rows-{number}"))
        words = ["prepare", text, "--tokenizer", str(tokenizer_files / "student.json")]
        words += ["--eos", "</s>", "--seq_len", "32", "--out", folders[-1]]
        assert vocagno([*words, "--workers", "1", "--cache", str(tmp_path / "cache")]) == 0
    assert train_here(mixture(config, corpora, "cached")) == 0
    given = str(mixture(config, corpora, "given")), "--data.rows"
    assert train_here(*given, json.dumps(folders)) == 0
    assert losses(tmp_path / "given") == losses(tmp_path / "cached")
    assert train_here(*given, folders[0]) == 2


def test_a_live_teacher_reads_the_texts_of_all(tmp_path, config, corpora):
    assert train_here(mixture(config, corpora, "run", teacher={"mode": "live"})) == 0
    training, _ = metrics(tmp_path / "run")
    assert all(entry["coverage"] == 1.0 for entry in training)


def test_other_weights_and_another_order_are_another_run(tmp_path, config, corpora, capfd):
    path = mixture(config, corpora, "run")
    assert train_here(path, "--train.steps", "2") == 0
    first, second = corpora
    for train in ({first: 0.5, second: 0.5}, {second: 0.25, first: 0.75}):
        path = mixture(config, corpora, "run", data={"train": train})
        assert train_here(path, "--train.steps", "2") == 2
        assert f"data.train is {train}, but" in capfd.readouterr().err


def test_a_spike_names_the_corpus(tmp_path, config, corpora):
    path = mixture(config, corpora, "run", train=LOSS["train"] | {"spike_ratio": 1.0001})
    assert train_here(path, "--optimizer.lr", "1", "--optimizer.min_lr", "1") == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    spikes = [spike for line in lines for spike in json.loads(line).get("spikes", [])]
    rows = [row for spike in spikes for row in spike["rows"]]
    assert rows
    folders = (tmp_path / "cache" / "rows").iterdir()
    sizes = [len(RowStore(folder)) for folder in folders]
    assert all(row["row"] < max(sizes) and row["corpus"] in corpora for row in rows)


def test_pages_show_documents_of_each_corpus(tmp_path, config, corpora):
    train = LOSS["train"] | {"steps": 1, "sample_every": 1}
    assert train_here(mixture(config, corpora, "run", train=train)) == 0
    page = (tmp_path / "run" / "samples" / "step_1.html").read_text()
    for corpus in corpora:
        assert f"Document 0 of {corpus}" in page
    card = (tmp_path / "run" / "final" / "README.md").read_text()
    assert f"`{corpora[0]}` (0.75), `{corpora[1]}` (0.25)" in card

"""Runs on several corpora: what is trained on, what is held out, and the scores of each."""

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import TRAIN, cut_back, metrics, run, same_weights, score_here, train_here, write_config
from vocagno.cli.app import main as vocagno
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import MixedPieces, MixedRows, RowStore
from vocagno.guidance.collator import Collator
from vocagno.teacher import MatchedScores, ScoreStore

pytestmark = pytest.mark.slow

OTHER = [f"Line {n} of another corpus, with {n * n} in it." for n in range(40)]
TRAINED = {"steps": 6, "global_batch": 8, "micro_batch": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mixtures")


@pytest.fixture(scope="module")
def corpora(folder):
    texts = ("c.jsonl", TEXTS), ("other.jsonl", OTHER)
    return [str(write_corpus(folder / name, of_one)) for name, of_one in texts]


@pytest.fixture(scope="module")
def mixture(folder, corpora, tokenizer_files, teacher_model):
    """Writes the configuration of a run on both corpora; all runs share a cache."""

    def write(output, **sections):
        data = {"train": dict(zip(corpora, (0.75, 0.25), strict=True))}
        data |= {"validation": {"first": corpora[0], "second": corpora[1]}}
        settings = {"train": TRAINED, "data": data, "output": str(folder / output)} | sections
        return write_config(folder, corpora[0], tokenizer_files, teacher_model, **settings)

    return write


@pytest.fixture(scope="module")
def trained(folder, mixture):
    """The folder of a run on both, and what it said."""
    stderr = io.StringIO()
    with redirect_stderr(stderr):
        assert train_here(mixture("run"), "--train.sample_every", 6) == 0
    return folder / "run", stderr.getvalue()


def losses(folder):
    training, validation = metrics(folder)
    return [entry["loss"] for entry in training], [
        entry["validation_losses"] for entry in validation
    ]


def test_a_mixture_does_not_depend_on_processes_or_restarts(folder, corpora, mixture, trained):
    run_folder, stderr = trained
    assert f"{corpora[0]}: 75 % of the rows, 2.77 epochs; " in stderr
    losses_of_one = losses(run_folder)
    stderr = run(2, TRAIN, "--config", mixture("two")).stderr  # as a user starts them
    assert stderr.count("complete: ") == 1
    losses_of_two = losses(folder / "two")
    np.testing.assert_allclose(losses_of_two[0], losses_of_one[0], rtol=1e-4)
    for held_out_of_one, held_out_of_two in zip(losses_of_one[1], losses_of_two[1], strict=True):
        assert held_out_of_one == pytest.approx(held_out_of_two, rel=1e-4)

    cut_back(run_folder, folder / "again")
    config = (run_folder / "config.yaml").read_text()
    (folder / "again" / "config.yaml").write_text(config.replace("/run\n", "/again\n"))
    assert train_here(mixture("again"), "--train.sample_every", 6) == 0
    assert same_weights(folder / "again", run_folder)


def predicted_bytes(row):
    """Of a row's text, without what its first token covers, which is not predicted."""
    pieces = np.repeat(np.arange(len(row.num_tokens)), row.num_tokens).tolist()
    spans = zip(pieces, row.spans.tolist(), strict=True)
    first, *predicted = [{(piece, i) for i in range(*span)} for piece, span in spans]
    return len(set().union(*predicted) - first)


def test_held_out_losses_are_those_of_each_text(folder, trained):
    last = metrics(trained[0])[1][-1]
    message = "first {first:.4f}, second {second:.4f})".format(**last["validation_losses"])
    assert message in trained[1]
    stores = map(RowStore, (folder / "cache" / "rows").iterdir())
    by_count = {store.manifest.count("documents"): store for store in stores}
    rows = {name: by_count[len(texts)] for name, texts in (("first", TEXTS), ("second", OTHER))}
    sizes = {name: sum(len(row.ids) - 1 for row in of_one) for name, of_one in rows.items()}
    total = sum(sizes[name] * loss for name, loss in last["validation_losses"].items())
    assert last["validation_loss"] == pytest.approx(total / sum(sizes.values()))
    assert last["validation_tokens"] == sum(sizes.values())
    per_byte = total / sum(predicted_bytes(row) for of_one in rows.values() for row in of_one)
    assert last["validation_nats_per_byte"] == pytest.approx(per_byte)


def test_rows_and_their_scores_belong_together(folder, trained):
    """The losses of a mixture are those of the row and its scores in the corpus that it is of."""
    stores = [RowStore(path) for path in sorted((folder / "cache" / "rows").iterdir())]
    matched = []
    for rows in stores:
        score_stores = [ScoreStore(path) for path in (folder / "cache" / "scores").iterdir()]
        (store,) = [store for store in score_stores if store.text_hashes == rows.text_hashes]
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
            inputs, other = alone([rows[number]]).inputs(), together([mixed[index]]).inputs()
            assert all(inputs[name].equal(other[name]) or name == "teacher_loss" for name in inputs)
            np.testing.assert_array_equal(inputs["teacher_loss"], other["teacher_loss"])
            assert inputs["teacher_loss"].isfinite().any()
    with pytest.raises(IndexError):
        mixed[len(mixed)]


def test_stores_of_scores_for_each_corpus_or_one_for_all(
    folder, corpora, mixture, trained, teacher_model
):
    together = folder / "together.jsonl"
    together.write_bytes(b"".join(Path(corpus).read_bytes() for corpus in reversed(corpora)))
    names = [
        str(score_here(text, teacher_model, folder / "scored" / str(number)))
        for number, text in enumerate([*corpora, together])
    ]
    for output, stores in (("each", names[:2]), ("all", names[2])):
        assert train_here(mixture(output, teacher={"model": None, "scores": stores})) == 0
        assert losses(folder / output) == losses(trained[0])
    assert train_here(mixture("wrong", teacher={"model": None, "scores": names})) == 2


def test_rows_that_were_made_for_each_corpus(folder, corpora, mixture, trained, tokenizer_files):
    folders = []
    for number, text in enumerate(corpora):
        folders.append(str(folder / f"rows-{number}"))
        words = ["prepare", text, "--tokenizer", str(tokenizer_files / "student.json")]
        words += ["--eos", "</s>", "--seq_len", "32", "--out", folders[-1]]
        assert vocagno([*words, "--workers", "1", "--cache", str(folder / "cache2")]) == 0
    arguments = str(mixture("given")), "--data.rows"
    assert train_here(*arguments, json.dumps(folders)) == 0
    assert losses(folder / "given") == losses(trained[0])
    assert train_here(*arguments, folders[0]) == 2


def test_a_live_teacher_reads_the_texts_of_all(folder, mixture):
    assert train_here(mixture("live", teacher={"mode": "live"})) == 0
    training, _ = metrics(folder / "live")
    assert all(entry["coverage"] == 1.0 for entry in training)


def test_other_weights_and_another_order_are_another_run(corpora, mixture, trained, capfd):
    first, second = corpora
    for train in ({first: 0.5, second: 0.5}, {second: 0.25, first: 0.75}):
        assert train_here(mixture("run", data={"train": train})) == 2
        assert f"data.train is {train}, but" in capfd.readouterr().err


def test_a_spike_names_the_corpus(folder, corpora, mixture, monkeypatch):
    monkeypatch.setattr("vocagno.training.monitoring.SPIKE_RATIO", 1.0001)
    path = mixture("spikes", train=TRAINED)
    assert train_here(path, "--optimizer.lr", "1", "--optimizer.min_lr", "1") == 0
    lines = (folder / "spikes" / "metrics.jsonl").read_text().splitlines()
    spikes = [spike for line in lines for spike in json.loads(line).get("spikes", [])]
    rows = [row for spike in spikes for row in spike["rows"]]
    assert rows
    sizes = [len(RowStore(path)) for path in (folder / "cache" / "rows").iterdir()]
    assert all(row["row"] < max(sizes) and row["corpus"] in corpora for row in rows)


def test_pages_show_documents_of_each_corpus(corpora, trained):
    page = (trained[0] / "samples" / "step_6.html").read_text()
    assert all(f"Document 0 of {corpus}" in page for corpus in corpora)
    card = (trained[0] / "final" / "README.md").read_text()
    assert f"`{corpora[0]}` (0.75), `{corpora[1]}` (0.25)" in card

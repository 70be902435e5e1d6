"""`vocagno scores show | info | verify | export | import`, as a user types them."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from folders import LFS_POINTER, LFS_WORDS, contents
from hub_server import serving, uses_hub
from score_stores import write_store
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.data.store.format import Manifest, check_names
from vocagno.data.store.shards import Shard, StoreError
from vocagno.integrations import scores_on_the_hub
from vocagno.integrations.scores_on_the_hub import EDGES, QUANTILES
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore

CANDIDATES = ["--candidates", "4"]


@pytest.fixture
def made(tmp_path, teacher_model, monkeypatch, request, cli):
    """A store of 12 shards, and the arguments that made it; with more of them if parametrised."""
    monkeypatch.setattr("vocagno.data.corpus.SHARD_BYTES", 60)
    corpus = write_corpus(tmp_path / "c.jsonl", [f"{i}: {t}" for i, t in enumerate(TEXTS[:12])])
    stores = f"--out {tmp_path}/store --cache {tmp_path}/cache"
    score = f"score {corpus} {stores} --teacher.model {teacher_model}".split()
    score += getattr(request, "param", [])
    cli(*score)
    return tmp_path / "store", score


def flip(path, fraction):
    data = bytearray(path.read_bytes())
    data[int(len(data) * fraction)] ^= 16
    path.write_bytes(data)


def test_info_counts_as_numpy_does(tmp_path, cli):
    """The command counts values of float16 instead of sorting losses; a value in the wrong bin or a
    NaN that is counted shows next to NumPy."""
    rng = np.random.default_rng(0)
    store = tmp_path / "store"
    documents = []
    for size in (500, 0, 1, 3000):
        ends = np.arange(1, size + 1)
        nll = rng.gamma(0.5, 3, size).astype(np.float16)
        nll[rng.random(size) < 0.1] = np.nan
        spans = np.stack([ends - 1, ends], 1).astype(np.int32)
        documents.append(DocumentScores(spans, nll, num_unscored=int(size > 1)))
    write_store(store, ["0", "1", "2", "3"], documents, {"teacher": "t"}, per_shard=2)
    info = cli.json("scores", "info", store)
    flat = np.concatenate([document.nll for document in documents]).astype(np.float64)
    scored = flat[~np.isnan(flat)]
    losses = info.pop("losses")
    assert (losses["scored"], losses["without"]) == (len(scored), len(flat) - len(scored))
    assert losses["mean"] == pytest.approx(scored.mean(), abs=1e-4)
    assert losses["standard_deviation"] == pytest.approx(scored.std(), abs=1e-4)
    assert losses["max"] == scored.max()
    expected = np.quantile(scored, QUANTILES, method="inverted_cdf")
    assert list(losses["quantiles"].values()) == expected.tolist()
    bins, _ = np.histogram(scored, [*EDGES, np.inf])
    assert list(losses["histogram"].values()) == bins.tolist()
    size = sum(path.stat().st_size for path in store.glob("*.arrow"))
    sizes = {"shards": 2, "documents": 4, "tokens": 3501, "bytes": size}
    sizes["bytes_per_token"] = round(size / 3501, 3)
    without = {"unscored_documents": 2, "unscored_tokens": 2, "refused_documents": 0}
    assert info == {"store": str(store), "made_from": {"teacher": "t"}} | sizes | without
    words = cli("scores", "info", store).out
    assert "tokens              3,501" in words
    assert "%" in words.splitlines()[-1]


def test_a_store_without_a_single_loss(tmp_path, cli):
    """Sees a mean or a quantile of no values."""
    spans = np.array([[0, 1]], np.int32)
    scores = [DocumentScores(spans, np.full(1, np.nan, np.float16))]
    write_store(tmp_path, ["a"], scores, {"teacher": "t"}, per_shard=1)
    losses = cli.json("scores", "info", tmp_path)["losses"]
    assert losses == {"scored": 0, "without": 1}
    cli("scores", "info", tmp_path)


@pytest.mark.parametrize("made", [[], CANDIDATES], indirect=True, ids=["losses", "candidates"])
def test_damage_is_named_removed_and_made_again(made, cli):
    store, score = made
    whole = contents(store)
    assert cli.json("scores", "verify", store)["damaged"] == []
    flip(store / "shard-00003.arrow", 0.6)
    (store / "shard-00005.arrow").unlink()
    captured = cli("scores", "verify", store, "--json", status=1)
    damaged = json.loads(captured.out)["damaged"]
    names = {line.split(":")[0] for line in damaged}
    assert names == {str(store / f"shard-0000{number}.arrow") for number in (3, 5)}
    assert "--discard removes the damaged shards" in captured.err
    assert "shard-00003.arrow" in cli.error("scores", "info", store)  # and no figures of it
    discarded = cli("scores", "verify", store, "--discard").err
    assert "removed 2 shards; run `vocagno score` again" in discarded
    assert cli.json(*score)["shards_made"] == 2
    assert contents(store) == whole


@pytest.mark.slow
@pytest.mark.parametrize("made", [[], CANDIDATES], indirect=True, ids=["losses", "candidates"])
def test_an_exported_store_is_imported_with_the_same_bytes(made, tmp_path, cli, monkeypatch):
    monkeypatch.setattr("vocagno.integrations.scores_on_the_hub.SHARDS_PER_FILE", 3)
    store, score = made
    parquet, again = tmp_path / "parquet", tmp_path / "again"
    exported = cli.json("scores", "export", store, "--out", parquet, "--title", 'A "title"')
    assert exported["files"] == 3
    message = cli.error("scores", "info", parquet)
    assert "Parquet; `vocagno scores import` makes a store of it" in message
    imported = cli.json("scores", "import", parquet, "--out", again)
    assert contents(again) == contents(store)
    assert imported["tokens"] == exported["tokens"] == ScoreStore(store).num_tokens
    card = (parquet / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1]) == {
        "pretty_name": 'A "title"',
        "tags": ["vocagno", "token-level-losses"],
        "size_categories": ["n<1K"],
        "configs": [{"config_name": "default", "data_files": "scores-*.parquet"}],
    }
    assert f"{exported['tokens']:,} tokens in all" in card
    assert ("| `candidates`, `candidate_sizes` |" in card) == ("--candidates" in score)


@pytest.mark.parametrize("made", [CANDIDATES, []], indirect=True, ids=["candidates", "losses"])
def test_a_document_is_shown_with_what_the_store_has(
    made, teacher_model, tmp_path, cli, monkeypatch
):
    """Sees losses or candidates that are shown next to another token than theirs."""
    monkeypatch.setenv("COLUMNS", "50")  # only candidates are cut
    store, corpus = ScoreStore(made[0]), tmp_path / "c.jsonl"
    spans, has_candidates = TokenSpans(teacher_model), store.candidates > 0
    show = ["scores", "show", store.folder, "--corpus", corpus, "--document", 3]
    document = cli.json(*show, "--tokenizer", teacher_model)
    assert document["text"] == f"3: {TEXTS[3]}"
    scores = store.document(3, candidates=has_candidates)
    tokens = document["tokens"]
    assert [[token["start"], token["end"]] for token in tokens] == scores.spans.tolist()
    losses = [np.nan if token["loss"] is None else token["loss"] for token in tokens]
    np.testing.assert_allclose(losses, scores.nll, atol=1e-4)
    assert np.isnan(losses[0])
    assert np.isfinite(losses[1:]).all()
    if has_candidates:
        assert [token["id"] for token in tokens] == scores.candidates.tokens.tolist()
        assert tokens[0]["candidates"] == []
        expected = scores.candidates.ids[1:], scores.candidates.probabilities[1:]
        for token, ids, probabilities in zip(tokens[1:], *expected, strict=True):
            assert [candidate["id"] for candidate in token["candidates"]] == ids.tolist()
            shown = [candidate["probability"] for candidate in token["candidates"]]
            np.testing.assert_allclose(shown, probabilities, atol=1e-5)
            for candidate in token["candidates"]:
                piece = (spans.pieces()[candidate["id"]] or b"").decode(errors="replace")
                assert not piece.isalpha() or candidate["text"] == piece
    else:
        assert not any("candidates" in token for token in tokens)
    table = cli(*show).out.splitlines()
    assert len(table) == 1 + len(tokens)
    for token, line in zip(tokens, table[1:], strict=True):
        assert line.split()[0] == f"{token['start']}-{token['end']}"
        assert ("-" if token["loss"] is None else f"{token['loss']:.2f}") in line.split()


def test_a_document_that_cannot_be_shown(made, tokenizer_files, tmp_path, cli):
    """It is not in the corpus, or not in the store; or the tokenizer is not the teacher's."""
    corpus = tmp_path / "c.jsonl"
    other = write_corpus(tmp_path / "other.jsonl", ["another text"])
    tokenizer = ["--tokenizer", tokenizer_files / "student.json"]
    for words, error in (
        (["--corpus", corpus, "--document", "12"], "has no document 12"),
        (["--corpus", corpus, "--document", "-1"], "has no document -1"),
        (["--corpus", corpus, "--document", str(2**70)], f"has no document {2**70}"),
        (["--corpus", other], "has no scores of document 0 of .*other.jsonl: not scored"),
        (["--corpus", corpus, *tokenizer], "--tokenizer: .* is not that of the scores"),
    ):
        assert re.search(error, cli.error("scores", "show", made[0], *words))


@pytest.mark.parametrize("made", [CANDIDATES], indirect=True)
def test_info_says_what_candidates_cost(made, cli):
    store, _ = made
    info = cli.json("scores", "info", store)
    shards = [Shard(path).batch.column("candidates") for path in store.glob("*.arrow")]
    size = sum(len(column.values) for column in shards)
    assert info["candidates"] == info["made_from"]["candidates"] == 4
    assert info["candidate_bytes_per_token"] == round(size / info["tokens"], 3) > 1
    words = cli("scores", "info", store).out
    assert re.search(r"^candidates +4$", words, re.MULTILINE)


@pytest.mark.parametrize("made", [CANDIDATES], indirect=True)
def test_a_hub_library_reads_the_export(made, tmp_path, cli):
    """With the card's own configuration, and every loss as it was."""
    datasets = pytest.importorskip("datasets")
    store, _ = made
    cli("scores", "export", store, "--out", tmp_path / "parquet")
    folder, cache = str(tmp_path / "parquet"), str(tmp_path / "hub")
    loaded = datasets.load_dataset(folder, split="train", cache_dir=cache)
    scores = ScoreStore(store)
    assert len(loaded) == len(scores)
    for index in (0, 5, len(scores) - 1):
        document = scores.document(index)
        np.testing.assert_array_equal(np.float16(loaded[index]["nll"]), document.nll)
        spans = np.stack([loaded[index]["byte_start"], loaded[index]["byte_end"]], 1)
        np.testing.assert_array_equal(spans, document.spans)


def test_an_export_is_pushed_as_a_private_data_set(made, tmp_path, cli, monkeypatch):
    store, _ = made
    parquet = tmp_path / "parquet"
    with serving() as hub:
        uses_hub(monkeypatch, hub)
        arguments = ["scores", "export", store, "--out", parquet, "--push_to_hub", "losses"]
        exported = cli.json(*arguments)
        assert exported["pushed"].startswith(f"{hub.url}/")
        assert hub.private == {"datasets/tester/losses": True}
        assert hub.files["datasets/tester/losses"] == contents(parquet)
        public = [tmp_path / "public", "--push_to_hub", "open", "--hub_private_repo", "false"]
        cli(*arguments[:4], *public)
        assert hub.private["datasets/tester/open"] is False
        # Without rights nothing is exported; if the hub fails later, the files are there.
        hub.statuses = {"create": 403}
        arguments[4] = tmp_path / "again"
        cli.error(*arguments)
        assert not (tmp_path / "again").exists()
        hub.statuses = {"commit": 403}
        message = cli.error(*arguments)
    assert contents(tmp_path / "again") == contents(parquet)
    assert f"hf upload losses {tmp_path / 'again'} . --repo-type dataset" in message


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_interrupted_leaves_nothing_and_works_again(
    made, tmp_path, cli, monkeypatch, is_there
):
    monkeypatch.setattr(scores_on_the_hub, "SHARDS_PER_FILE", 3)
    store, place = made[0], tmp_path / "place"
    parquet, again = place / "parquet", place / "again"
    for folder in (parquet, again) if is_there else (place,):
        folder.mkdir(parents=True)
    for command, source, out, function in (
        ("export", store, parquet, "_table"),
        ("import", parquet, again, "_import_shard"),
    ):
        before = sorted(place.rglob("*"))
        words = "scores", command, source, "--out", out
        with monkeypatch.context() as patch:
            whole = getattr(scores_on_the_hub, function)
            patch.setattr(scores_on_the_hub, function, interrupted(whole))
            cli(*words, status=130)
            assert sorted(place.rglob("*")) == before
        cli(*words)
    assert contents(again) == contents(store)


def interrupted(function):
    """By Ctrl-C, when it is called for the sixth time."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return function(*arguments)

    return call


def test_an_export_that_is_not_whole_is_refused(made, tmp_path, cli, monkeypatch):
    """A file that is missing, truncated, a pointer or of another description leaves no store
    behind."""
    monkeypatch.setattr("vocagno.integrations.scores_on_the_hub.SHARDS_PER_FILE", 3)
    store, _ = made
    parquet = tmp_path / "parquet"
    export = "scores", "export", store, "--out", parquet
    cli(*export)

    def refused(change, words):
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        shutil.copytree(parquet, tmp_path / "changed")
        change(tmp_path / "changed")
        arguments = "scores", "import", tmp_path / "changed", "--out", tmp_path / "new"
        assert words in cli.error(*arguments).splitlines()[-1]
        assert not (tmp_path / "new" / "manifest.json").exists()

    second = "scores-00001-of-00003.parquet"
    missing, damaged = "all files from scores-00000-of-N.parquet", "not a complete export of scores"
    refused(lambda folder: (folder / second).unlink(), f"expected {missing}")
    refused(lambda folder: (folder / second).write_bytes(b"PAR1"), damaged)
    refused(lambda folder: (folder / second).write_bytes(LFS_POINTER), f"{second}: {LFS_WORDS}")
    for words, change in (
        ("0 shards in 3 row groups", {"shards": []}),
        ("made_from: expected an object, got a list", {"made_from": [1]}),
        ("shards[0]: expected an object, got 'x'", {"shards": ["x"] * 3}),
        ("contains scores 9, expected scores", {"version": 9, "shards": None}),
    ):
        refused(lambda folder, change=change: describe(folder / second, **change), words)
    refused(lambda folder: shutil.rmtree(folder), "found none")
    assert "is not empty" in cli.error(*export)
    message = cli.error("scores", "import", parquet, "--out", store)
    assert "is not empty; name a new folder for the import" in message


def describe(path, **changed):
    """Changes the description of an exported file."""
    with pq.ParquetFile(path) as file:
        tables = [file.read_row_group(number) for number in range(file.num_row_groups)]
    about = json.loads(tables[0].schema.metadata[b"vocagno"]) | changed
    schema = tables[0].schema.with_metadata({b"vocagno": json.dumps(about)})
    with pq.ParquetWriter(path, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


@pytest.mark.slow
def test_a_flipped_bit_of_an_export_is_seen_or_harmless(made, tmp_path, capsys, cli):
    """Harmless are those of statistics and the like, which nobody reads."""
    store, _ = made
    cli("scores", "export", store, "--out", tmp_path / "parquet")
    (path,) = (tmp_path / "parquet").glob("*.parquet")
    refusals = 0
    for percent in range(0, 100, 4):
        new = tmp_path / f"new{percent}"
        flip(path, percent / 100)
        capsys.readouterr()
        if main(["scores", "import", str(path.parent), "--out", str(new)]) == 2:
            assert str(path) in capsys.readouterr().err
            refusals += 1
        else:
            assert contents(new) == contents(store)
        flip(path, percent / 100)
    assert refusals > 10


def test_an_export_that_names_files_elsewhere_is_refused(made, tmp_path, cli):
    store, _ = made
    manifest = Manifest.load(store, SCORES)
    entries = [replace(manifest.shards[0], name="../../elsewhere"), *manifest.shards[1:]]
    Manifest("scores", 2, manifest.made_from, entries).save(store)
    message = cli.error("scores", "verify", store, "--discard")
    assert "shard names are duplicated or invalid" in message
    with pytest.raises(StoreError, match="duplicated"):
        check_names(["a", "a"], tmp_path)

"""A corpus with documents whose tokens cannot be placed: prepared, scored in parts, trained on.

The student's tokenizer cannot read snowmen, the teacher's neither these nor knights.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from folders import contents
from runs import environment, metrics, train_here
from tiny_models import save_llama
from vocagno.cli.app import main
from vocagno.data.rows import RowStore
from vocagno.data.store.format import REPORT
from vocagno.integrations.scores_on_the_hub import export_scores, import_scores
from vocagno.teacher.score_store import ScoreStore
from warm_python import executable

SLOW = Path(__file__).parents[1] / "support" / "processes" / "slow_command.py"
SNOWMEN = [3, 250, 251, 702, 999]
KNIGHT = 500


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a corpus of 1,000 documents, the student's tokenizer, and the teacher."""
    folder = tmp_path_factory.mktemp("refused")
    texts = [f"{number}: {TEXTS[number % 6]}" for number in range(1000)]
    for number in SNOWMEN:
        texts[number] += " ☃"
    texts[KNIGHT] += " ♞"
    write_corpus(folder / "c.jsonl", texts)
    without_unknown_token("☃").save(str(folder / "student.json"))
    save_llama(folder / "teacher", without_unknown_token("☃", "♞"), seed=1)
    return folder


def prepare(made, out, *flags):
    corpus, tokenizer = made / "c.jsonl", made / "student.json"
    options = ["--tokenizer", tokenizer, "--eos", "</s>", "--seq_len", 32, "--out", out]
    return main(list(map(str, ["prepare", corpus, *options, "--cache", made / "cache", *flags])))


def score(made, out, *flags):
    options = ["--teacher.model", made / "teacher", "--cache", made / "cache", "--out", out]
    return list(map(str, ["score", made / "c.jsonl", *options, "--json", *flags]))


def reported(store):
    return [json.loads(line) for line in (store / REPORT).read_text("utf-8").splitlines()]


def start(arguments):
    environ = environment(SECONDS="0", SHARD_BYTES="5000")
    return subprocess.Popen([executable(), str(SLOW), *arguments], env=environ)


@pytest.fixture(scope="module")
def rows(made):
    assert prepare(made, made / "rows", "--workers", "1") == 0
    return made / "rows"


@pytest.fixture(scope="module")
def scores(made):
    """In one process."""
    assert start(score(made, made / "scores")).wait(timeout=200) == 0
    return made / "scores"


@pytest.mark.slow
def test_rows_leave_documents_out_and_name_file_line_and_reason(made, rows, capsys):
    store = RowStore(rows)
    counts = [store.manifest.count(unit) for unit in ("documents", "refused_documents")]
    assert counts == [1000, 5]
    places = [(number, f"c.jsonl, line {number + 1}") for number in SNOWMEN]
    assert [(entry["document"], entry["place"]) for entry in reported(rows)] == places
    assert all("cannot be tokenized" in entry["why"] for entry in reported(rows))
    with_rows = {int(number) for row in store for number in row.documents}
    assert with_rows == {*range(1000)} - {*SNOWMEN}


@pytest.mark.slow
def test_parts_finish_to_the_same_bytes_and_travel_as_parquet(made, scores, capsys):
    for part in ("2/2", "1/2"):
        assert start(score(made, made / "parts", "--shards", part)).wait(timeout=200) == 0
    assert main(["scores", "finish", str(made / "parts")]) == 0
    assert "omitted 6 of 1,000 documents" in capsys.readouterr().err
    assert contents(made / "parts") == contents(scores)
    assert [entry["document"] for entry in reported(scores)] == sorted([*SNOWMEN, KNIGHT])
    assert list(ScoreStore(scores).damages()) == []
    export_scores(ScoreStore(scores), made / "parquet", "card")
    import_scores(made / "parquet", made / "imported")
    assert contents(made / "imported") == contents(scores)


@pytest.mark.slow
def test_training_counts_what_the_teacher_could_not_read(
    made, rows, scores, tmp_path, config, capsys
):
    size = len(RowStore(rows)) // 40 + 1
    schedule = {"steps": 40, "log_every": 40, "checkpoint_every": 40}
    path = config(
        student={"tokenizer": str(made / "student.json")},
        teacher={"model": None, "scores": str(scores)},
        data={"train": str(made / "c.jsonl"), "rows": str(rows)},
        train=schedule | {"global_batch": size, "micro_batch": size},
    )
    assert train_here(path) == 0
    (entry,) = metrics(tmp_path / "run")[0]
    assert entry["unmapped"]["missing"] >= len(f"{KNIGHT}: {TEXTS[KNIGHT % 6]} ♞") // 2
    assert entry["coverage"] == entry["scored"] == 1
    stderr = capsys.readouterr().err
    assert "omitted 5 of 1,000 documents" in stderr
    assert "the teacher could not read 1 of " in stderr
    assert train_here(path, "--data.max_refused", 0, "--output", tmp_path / "none") == 2
    stderr = capsys.readouterr().err
    assert "of 1,000 documents cannot be placed in their text, and max_refused" in stderr


@pytest.mark.parametrize("share", ["0", "0.001"])
def test_more_than_the_limit_is_an_error_that_says_how_to_go_on(made, tmp_path, capsys, share):
    """Six more make eleven, beyond the ten that are always allowed."""
    lines = (made / "c.jsonl").read_text("utf-8").splitlines(keepends=True)
    corpus = tmp_path / "more.jsonl"
    corpus.write_text("".join(lines) + 6 * '{"text": "a ☃"}\n', "utf-8")
    options = ["--tokenizer", made / "student.json", "--eos", "</s>", "--cache", tmp_path]
    command = list(map(str, ["prepare", corpus, *options, "--workers", "1"]))
    assert main([*command, "--max_refused", share]) == 2
    stderr = capsys.readouterr().err
    assert f"and max_refused allows {'none' if share == '0' else '0.10% or 10'}" in stderr
    assert re.search(r"more\.jsonl, line (4|\d{3,4}): cannot be tokenized", stderr)
    assert "raise max_refused (data.max_refused of a run" in stderr
    assert main([*command, "--max_refused", "0.02"]) == 0
    assert "omitted 11 of 1,006 documents" in capsys.readouterr().err
    for wrong in ("-1", "2"):
        assert main([*command, "--max_refused", wrong]) == 2
        assert f"max_refused must be in [0, 1], got {float(wrong)}" in capsys.readouterr().err


def test_overlap_counts_and_names_what_either_side_cannot_read(made, capsys):
    sides = made / "student.json", made / "teacher"
    assert main([*map(str, ["overlap", *sides, made / "c.jsonl"]), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)["corpus"]
    assert [int(number) for number in counted["student_refused"]] == SNOWMEN
    assert sorted(map(int, counted["teacher_refused"])) == sorted([*SNOWMEN, KNIGHT])
    assert (counted["documents"], counted["coverage"]) == (1000, 1)
    assert counted["student_without_tokens"] == []

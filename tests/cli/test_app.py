"""What somebody types who does not know the commands yet, and what the answer says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import environment, write_config

pytest.importorskip("jsonargparse")
pytest.importorskip("rich")

import vocagno
from vocagno.errors import ConfigError, InputError


@pytest.fixture
def files(tmp_path, tokenizer_files, monkeypatch):
    """A folder to type in: two tokenizers, a corpus, and what is neither."""
    for side in ("student", "teacher"):
        (tmp_path / f"{side}.json").write_bytes((tokenizer_files / f"{side}.json").read_bytes())
    write_corpus(tmp_path / "corpus.jsonl", TEXTS)
    (tmp_path / "hello.json").write_text('{"hello": 1}')
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complaint(cli):
    """The one line that a command ends with."""

    def end(*words):
        captured = cli(*words, status=2)
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return end


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], [r"align Show one text under two", r"eval Grade a model on math", r"train Train a"]),
        (["scores"], [r"info Describe a store", r"import Make a store from exported"]),
    ],
)
def test_help_says_what_each_command_does(arguments, lines, cli):
    shown = cli(*arguments, "--help").out
    for line in lines:
        assert re.search(line, " ".join(shown.split()))
    assert cli(*arguments, status=2) == ("", shown)  # the same without --help, as an error


SCORE = "score corpus.jsonl --teacher.model teacher"


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("algin a b", "did you mean align?"),
        ("scores inf x", "did you mean scores info?"),
        ("verify x", "did you mean scores verify?"),
        ("frobnicate", "frobnicate: no such command of `vocagno`; see `vocagno --help`"),
        ("--foo", "--foo"),
        (
            "score --teacher.contxt 3",
            "--teacher.contxt: no such option; did you mean --teacher.con",
        ),
        ("score c --teacher.mode=live --otu x", "did you mean --teacher.model?; --otu: no such op"),
        ("score c --teacher.dtype float31", "teacher.dtype"),
        ("score c --config missing.yaml", "missing.yaml"),
        ("score c --config hello.json", "hello: no such option; see `vocagno score --help`"),
        ("prepare c --tokenizer t --seq_len", "--seq_len"),
        ("prepare c", "error: needed: --tokenizer; see `vocagno prepare --help`"),
        ("filter", "error: needed: corpus, --out; see `vocagno filter --help`"),
        ("score c --config nope.yaml", "--config: no such file: "),
        ("align --student a --teacher b", "--student: no such option; --teacher: no such option"),
        ("align a b some words", "words; see `vocagno align --help`"),
        ("align a b x --pict", "--pict: no such option; did you mean --picture?"),
        ("align student.json teacher.json --file nope", "[Errno 2] No such file or directory: 'no"),
        ("align student.json teacher.json --file empty.txt", "empty.txt: the text is empty; "),
        ("score missing.jsonl --teacher.model x", "missing.jsonl: no such file"),
        ("score corpus.jsonl", "teacher.model: needed"),
        ("score corpus.jsonl --teacher.context 1", "teacher.context must be at least 2"),
        (f"{SCORE} --candidates -1", "teacher.candidates must be in [0, 255], got -1"),
        (f"{SCORE} --teacher.candidates 256", "teacher.candidates must be in [0, 255], got 256"),
        (f"{SCORE} --sampled", "teacher.sampled: needs teacher.candidates"),
        (f"{SCORE} --shards 3", "--shards: expected I/N, I from 1 to N, as in 3/8; got 3"),
        (f"{SCORE} --shards 0/2", "--shards: expected I/N, I from 1 to N, as in 3/8; got 0/2"),
        (f"{SCORE} --shards 3/2", "--shards: expected I/N, I from 1 to N, as in 3/8; got 3/2"),
        (f"{SCORE} --shard_bytes 0", "--shard_bytes must be positive, got 0"),
        (
            f"{SCORE} --shard_bytes 1000",
            "--shard_bytes: training finds scores in the cache only with the default size; "
            "add --out FOLDER, and pass it to training as teacher.scores",
        ),
        ("prepare corpus.jsonl --tokenizer corpus.jsonl", "not a `tokenizers` definition"),
        ("prepare corpus.jsonl --tokenizer student.json --eos <x>", "student.eos"),
        ("prepare corpus.jsonl --tokenizer student.json --eos </s> --seq_len 0", "--seq_len must"),
        ("limit corpus.jsonl --tokenizer student.json --keep 1.5", "must be in (0, 1], got 1.5"),
        ("scores info none", "none: this store of scores does not exist"),
        ("scores verify none", "none: this store of scores does not exist"),
        ("scores export none --out out", "none: this store of scores does not exist"),
    ],
)
def test_what_cannot_be_done_is_named_in_a_line(files, typed, word, complaint):
    assert word in complaint(*typed.split())


@pytest.fixture
def config(files, tokenizer_files):
    """A configuration that would train, with sections changed."""
    pytest.importorskip("torch")
    return lambda **parts: str(write_config(files, "corpus.jsonl", tokenizer_files, "x", **parts))


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("--optimizer.lrr 1", "--optimizer.lrr: no such option; did you mean --optimizer.lr?"),
        ("--steps=3", "--steps: no such option; did you mean --train.steps?"),
        ("--guidance.method nope", "uld"),
        ("--optimizer.betas [1,2,3]", "optimizer.betas"),
        ("--train.log_with [x]", "wandb"),
        ("--train.compile x", "train.compile"),
        ("--student.architecture 3", "student.architecture"),
        ('--optimizer {"lr":"x"}', "optimizer.lr"),
        ("--student 3", "student"),
        ("more", "more; see `vocagno train --help`"),
    ],
)
def test_a_wrong_option_of_training_is_named(config, typed, word, complaint):
    assert word in complaint("train", "--config", config(), *typed.split())


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"train": {"stepps": 1}}, "train.stepps: no such option; did you mean train.steps?"),
        ({"optimiser": {"lr": 1}}, "optimiser.lr: no such option; did you mean optimizer.lr?"),
        ({"train": {"steps": None}}, "train.steps"),
        ({"guidance": {"method": ["cpt"]}}, "guidance.method"),
        ({"output": 3}, "output"),
        ({"guidance": None}, "guidance: expected options as `name: value`, got None"),
        ({1: 2}, "1"),
    ],
)
def test_a_wrong_entry_of_a_configuration_is_named(config, parts, word, complaint, files):
    import yaml

    whole = yaml.safe_load(Path(config()).read_text())
    for name, part in parts.items():
        merges = isinstance(part, dict) and name in whole
        whole[name] = {**whole[name], **part} if merges else part
    (files / "my.yaml").write_text(yaml.safe_dump(whole))
    assert word in complaint("train", "--config", "my.yaml")


@pytest.mark.parametrize(
    ("content", "word"), [("hello\n", "hello"), ("", "config"), ("output: \udcff\n", "utf-8")]
)
def test_files_that_hold_no_options(files, content, word, complaint):
    pytest.importorskip("torch")
    (files / "my.yaml").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert word in complaint("train", "--config=my.yaml")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("variants: 3\n", "variants"),
        ("variants: {}\n", "config, baseline, tables"),
        ("output: \udcff\n", "utf-8"),
    ],
)
def test_a_wrong_plan_of_a_study_names_its_file(files, content, word):
    from research.study.plan import read_plan

    (files / "plan.yaml").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=rf"plan\.yaml: .*{word}"):
        read_plan(files / "plan.yaml")


def run(*arguments, **options):
    command = [sys.executable, "-m", "vocagno", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, **options
    )


@pytest.mark.slow
def test_a_terminal_without_the_signs(files):
    """Pictures say so; words come out with escapes, and nothing ends in a traceback."""
    ascii_only = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    picture = run("align", "student.json", "teacher.json", "é", "--picture", env=ascii_only)
    assert (picture.returncode, picture.stdout) == (2, "")
    assert picture.stderr == (
        "error: the terminal's encoding, ascii, cannot show the picture; set "
        "PYTHONIOENCODING=utf-8 if the terminal can, or draw a page: --html FILE\n"
    )
    definition = json.loads((files / "student.json").read_text(encoding="utf-8"))
    definition["added_tokens"][0]["content"] = "<｜é｜>"
    (files / "student.json").write_text(json.dumps(definition), encoding="utf-8")
    words = run("describe", "student.json", env=ascii_only)
    assert (words.returncode, words.stderr) == (0, "")
    assert r"<s> </s> <\uff5c\xe9\uff5c>" in words.stdout


def test_wrong_ids_and_texts_are_named_in_python_too(files):
    spans = vocagno.TokenSpans("student.json")
    size = spans.vocabulary_size
    assert repr(spans) == f"TokenSpans('student.json', vocabulary_size={size}, spans_from='ids')"
    for index in (-1, 2**32):
        message = rf"student\.json: id {index}: expected one from 0 to {size - 1}"
        with pytest.raises(InputError, match=message):
            spans.token(index)
    assert spans.token(size) is spans.token(2**32 - 1) is None
    assert spans.token(size - 1) is not None
    with pytest.raises(TypeError, match=r"^text: expected one str, got list"):
        vocagno.align_text(spans, spans, ["x"])

"""What a run needs before its first step is built once."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import metrics, same_weights, score_here, train_here
from vocagno.cli.app import main
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.teacher import configured
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training import inputs
from vocagno.training.checkpoint import MetricsLog


@pytest.fixture
def built(monkeypatch):
    """How often each tokenizer was built, and each model's weights were hashed."""
    count = Counter()
    init, identity = TokenSpans.__init__, configured.weights_identity

    def counted_init(self, tokenizer, *arguments, **options):
        count[str(tokenizer)[:500]] += 1
        init(self, tokenizer, *arguments, **options)

    def counted_identity(*arguments):
        count["weights"] += 1
        return identity(*arguments)

    monkeypatch.setattr(TokenSpans, "__init__", counted_init)
    monkeypatch.setattr(configured, "weights_identity", counted_identity)
    return count


CASES = {
    "stored": {},
    "live": {"teacher": {"mode": "live"}},
    "pages": {"train": {"sample_every": 1}},
    "live pages": {"teacher": {"mode": "live"}, "train": {"sample_every": 1}},
    "rho1": {"guidance": {"method": "rho1"}},
    "kld": {"guidance": {"method": "kld"}, "teacher": {"mode": "live"}},
    "own tokenizer": {"student": {"architecture": None, "tokenizer": None}},
}
OF_THE_SAME_VOCABULARY = {"rho1": "teacher", "kld": "teacher", "own tokenizer": "student"}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_start_builds_each_tokenizer_once(config, same_vocabulary_model, built, case):
    sections = {"train": {}, **CASES[case]}
    if section := OF_THE_SAME_VOCABULARY.get(case):
        sections[section] = {"model": str(same_vocabulary_model), **sections.get(section, {})}
    sections["train"] = {"steps": 1, **sections["train"]}
    assert train_here(config(**sections)) == 0
    assert built.pop("weights") == 1
    assert len(built) == 2  # that of the student, and that of the teacher
    assert set(built.values()) == {1}


@pytest.fixture
def made(tmp_path, corpus, tokenizer_files, teacher_model):
    """Rows and scores of the corpus that were made beforehand, as options."""
    rows, cache = tmp_path / "rows", ["--cache", str(tmp_path / "elsewhere")]
    tokenizer = ["--tokenizer", str(tokenizer_files / "student.json"), "--eos", "</s>"]
    command = ["prepare", str(corpus), *tokenizer, "--seq_len", "32", "--workers", "1", *cache]
    assert main([*command, "--out", str(rows)]) == 0
    scores = score_here(corpus, teacher_model, tmp_path / "elsewhere" / "scores")
    return {"data.rows": rows, "teacher.scores": scores}


def options(values):
    return [f"--{name}={value}" for name, value in values.items()]


@pytest.mark.slow
def test_rows_made_beforehand_train_as_those_in_the_cache(tmp_path, config, made):
    """With scores, too, the corpus is not read."""
    assert train_here(config()) == 0
    nowhere = {"data.train": "nowhere.jsonl", "data.cache": tmp_path / "empty"}
    assert train_here(config(), *options(made | nowhere | {"output": tmp_path / "given"})) == 0
    assert not list((tmp_path / "empty").glob("rows/*"))
    losses = [[entry["loss"] for entry in metrics(tmp_path / run)[0]] for run in ("run", "given")]
    assert losses[0] == losses[1]
    assert same_weights(tmp_path / "run", tmp_path / "given")


@pytest.mark.slow
def test_rows_that_are_not_of_this_run_are_refused(
    tmp_path, config, corpus, tokenizer_files, made, capsys
):
    for section, value, words in (
        ("data.seq_len", 16, "made with another seq len (32, now 16); make them again"),
        ("student.tokenizer", tokenizer_files / "teacher.json", "made with another tokenizer ("),
        ("data.rows", tmp_path, "this store of rows is unfinished, or not a store"),
    ):
        eos = {"student.eos": "<|endoftext|>"} if section == "student.tokenizer" else {}
        assert train_here(config(), *options(made | {section: value} | eos)) == 2
        assert words in capsys.readouterr().err
    write_corpus(corpus, TEXTS[1:])
    live = {"data.rows": made["data.rows"], "teacher.mode": "live"}
    assert train_here(config(), *options(live)) == 2
    assert "are not those of data.train in its order" in capsys.readouterr().err
    pages = config(train={"sample_every": 1})
    assert train_here(pages, *options(made)) == 2
    assert "empty, or not those of data.rows" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_in_another_order_than_their_corpora_are_refused(
    tmp_path, config, corpus, tokenizer_files, made, capsys
):
    """Each would be mixed with the weight of the other. Rows without a corpus are trained on."""
    other = write_corpus(tmp_path / "other.jsonl", ["", *reversed(TEXTS)])
    tokenizer = ["--tokenizer", str(tokenizer_files / "student.json"), "--eos", "</s>"]
    settings = ["--seq_len", "32", "--workers", "1", "--cache", str(tmp_path / "elsewhere")]
    rows = [str(made["data.rows"]), str(tmp_path / "other-rows")]
    assert main(["prepare", str(other), *tokenizer, *settings, "--out", rows[1]]) == 0
    guidance = {"method": "cpt"}

    def train(corpora, rows, out):
        weights = {str(name): 1 for name in corpora}
        data = {"train": weights, "rows": rows}
        path = config(data=data, guidance=guidance, output=str(tmp_path / out))
        return train_here(path, "--train.steps=1")

    assert train([corpus, other], rows[::-1], "swapped") == 2
    message = f"{rows[0]} has the place of {other}, but begins with the first text of {corpus}"
    assert message in capsys.readouterr().err
    (tmp_path / "empty").mkdir()  # no corpus
    assert train(["nowhere.jsonl", tmp_path / "empty"], rows[::-1], "rows alone") == 0
    assert train([corpus, other], rows, "in order") == 0


@pytest.mark.slow
def test_a_run_that_stopped_before_its_first_checkpoint_begins_again(
    tmp_path, config, corpus, same_vocabulary_model
):
    """Its log has the loss of the start, which is measured again. One without a step has no log."""
    MetricsLog(tmp_path / "run" / "metrics.jsonl", 0).write({"step": 0, "validation_loss": 3.0})
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "validation_loss": 3.0}\n')
    student = {"model": str(same_vocabulary_model), "architecture": None, "tokenizer": None}
    data = {"validation": str(corpus)}
    assert train_here(config(student=student, data=data, train={"steps": 2})) == 0
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text().splitlines()
    assert [line.count('{"step": 0,') for line in lines].count(1) == 1
    assert (tmp_path / "run" / "report.html").is_file()
    log.write_bytes(log.read_bytes().removesuffix(b"\n"))  # as a kill may leave it
    MetricsLog(log, 2).write({"step": 3})
    assert log.read_text().splitlines() == [*lines, '{"step": 3}']


@pytest.mark.slow
def test_a_run_warns_of_padding_and_of_held_out_text_that_it_reads(
    tmp_path, config, same_vocabulary_model, capsys
):
    folder = tmp_path / "files"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        write_corpus(folder / f"{number:02d}.jsonl", [text])
    data = {"train": str(folder), "validation": str(folder), "seq_len": 256}
    teacher = {"mode": "live", "model": str(same_vocabulary_model), "context": 64}
    options = {"guidance": {"method": "kld"}, "train": {"steps": 1}}
    with pytest.warns(UserWarning, match=r"^teacher.context: without effect here"):
        assert train_here(config(data=data, teacher=teacher, **options)) == 0
    stderr = capsys.readouterr().err
    for words in ("of the rows of .* is padding", "have the text of data.train"):
        assert re.search(words, stderr)


def test_corpora_scored_with_and_without_sampling_do_not_train_together(tmp_path):
    """A target from likely ids and one from drawn ids mean different things; both look alike."""
    options = {"method": "distill", "distill_where": "all"}
    config = SimpleNamespace(guidance=GuidanceConfig(**options), teacher=SimpleNamespace(also=None))

    def matched(is_sampled):
        store = SimpleNamespace(candidates=8, is_sampled=is_sampled, has_entropy=True)
        return SimpleNamespace(store=store)

    teacher = SimpleNamespace(config=SimpleNamespace(candidates=0))
    for first, second in ((True, False), (False, True)):
        scores = {"a.jsonl": matched(first), "b.jsonl": matched(second)}
        with pytest.raises(ConfigError, match="of some corpora are sampled, and those of others"):
            inputs._targets(config, ["buckets"], [teacher], [scores])

"""A server that has another model under the same name gets no shard into a store."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("requests")

from folders import contents
from score_server import serving
from vocagno.cli.app import main
from vocagno.config.teacher import TeacherConfig
from vocagno.data.store.shards import StoreError
from vocagno.integrations import scoring_server as module
from vocagno.integrations.scoring_server import TOLERANCE, ProbedTeacher, ServerScorer
from vocagno.system.shared_work import LOCKS
from vocagno.teacher.windows import TextReader
from vocagno.tokens.token_spans import TokenSpans


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF", 0.0)
    with serving() as (url, state):
        yield url, state


@pytest.fixture
def score(served, corpus, tmp_path, tokenizer_files):
    """`vocagno score` into a folder, with the server of this test."""
    given = ["--teacher.server", served[0], "--teacher.context", "512", "--shard_bytes", "200"]
    given += ["--teacher.tokenizer", str(tokenizer_files / "teacher.json")]
    given += ["--cache", str(tmp_path / "cache")]

    def run(name, *more):
        return main(["score", str(corpus), *given, *more, "--out", str(tmp_path / name)])

    return run


def another_model(state, by=0.5):
    """Every loss of the server becomes larger; its name remains."""
    state.change = lambda found, ids: [one and one - by for one in found]


def same_model(state):
    state.change = lambda found, ids: found


def interrupted(score, state, name="store", after=12):
    """A store with a part of its shards."""
    state.statuses = [200] * after + [400]
    assert score(name) == 2
    state.statuses = []


@pytest.mark.slow
def test_another_model_at_resume(served, score, tmp_path, capsys):
    url, state = served
    assert score("whole") == 0
    interrupted(score, state)
    before = contents(tmp_path / "store")
    assert 0 < len(before) < len(contents(tmp_path / "whole")) - 1
    another_model(state)
    capsys.readouterr()
    assert score("store") == 2
    words = capsys.readouterr().err
    assert f"the scores here are of another model than tiny at {url} has now" in words
    assert "differ by 0.5 nats a token" in words
    assert "serve the model of these scores again, or name another folder" in words
    assert contents(tmp_path / "store") == before
    same_model(state)
    assert score("store") == 0
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_another_model_in_the_middle_of_a_shard(served, score, tmp_path):
    """The server is started again with another model, and the client reconnects."""
    _, state = served
    assert score("whole") == 0
    asked = len(state.asked)

    def changing(found, ids):
        later = len(state.asked) > asked + asked // 2
        return [one and one - 0.5 * later for one in found]

    state.change = changing
    assert score("store") == 2
    whole, found = contents(tmp_path / "whole"), contents(tmp_path / "store")
    assert 0 < len(found) < len(whole) - 1
    assert all(whole[name] == data for name, data in found.items())


def test_batches_of_one_model_may_differ(served, score, tmp_path):
    _, state = served
    interrupted(score, state)
    another_model(state, by=TOLERANCE / 2)
    assert score("store") == 0


@pytest.mark.slow
def test_parts_and_finished_stores(served, score, tmp_path, capsys):
    """Parts are made without locks. A finished store is not said to be of the new model."""
    _, state = served
    assert score("parts", "--shards", "1/2") == 0
    another_model(state)
    assert score("parts", "--shards", "2/2") == 2
    assert score("parts", "--shards", "1/2") == 2
    same_model(state)
    assert score("parts", "--shards", "2/2") == 0
    assert main(["scores", "finish", str(tmp_path / "parts")]) == 0
    assert score("parts") == 0
    another_model(state)
    assert score("parts") == 2
    assert "are of another model" in capsys.readouterr().err
    (tmp_path / "parts" / LOCKS / "probe.json").unlink()  # a copy without it
    assert score("parts") == 0


def test_what_is_noted(served, tokenizers, tmp_path):
    """A text and its losses. The text counts that was noted, even by another release."""
    url, state = served
    state.change = lambda found, ids: [*found[:3], None, *found[4:]]
    spans = TokenSpans(tokenizers["byte-level"])
    scorer = ServerScorer(TeacherConfig(server=url, tokenizer="t", context=512))
    teacher = ProbedTeacher(scorer, TextReader(spans, (), context=512, min_context=64), tmp_path)
    teacher.score(["one text"])
    path = tmp_path / LOCKS / "probe.json"
    noted = json.loads(path.read_bytes())
    assert noted["text"] == module.PROBE
    assert noted["losses"].count(None) == 1
    assert len(noted["losses"]) == len(spans.encode([module.PROBE]).ids) - 1
    path.write_text(json.dumps({"text": "another text", "losses": [1.0, 2.0]}))
    with pytest.raises(StoreError, match="differ by inf nats a token"):
        teacher.score(["one text"])

"""A teacher behind a server, and servers that fail or lie."""

import dataclasses
import json
import math
import re
import threading
import types

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("requests")

from families import TEXTS
from folders import contents
from mutations import mutations
from runs import metrics, train_here
from score_server import RECORDED, State, log_probability, replaying, reply, serving
from vocagno.cli.app import main
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.integrations import scoring_server as module
from vocagno.integrations.scoring_server import ServerError, ServerScorer
from vocagno.teacher.scores import ScoreStore
from vocagno.teacher.windows import TextReader, Window
from vocagno.tokens.token_spans import TokenSpans

PROTOCOLS = ("vllm", "openai", "sglang")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF", 0.0)


@pytest.fixture
def served():
    with serving() as (url, state):
        yield url, state


@pytest.fixture(scope="module")
def reader(tokenizers):
    """That of a teacher with a context of 64 tokens."""
    return TextReader(TokenSpans(tokenizers["byte-level"]), (), context=64, min_context=16)


def scorer(url, **options):
    return ServerScorer(TeacherConfig(server=url, tokenizer="t", context=64, **options))


def windows(count=20):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, count)
    return [Window(rng.integers(2, 900, n), min(int(n), 1 + k % 3)) for k, n in enumerate(lengths)]


def expected(window):
    ids = window.ids.tolist()
    return [-log_probability(ids, place) for place in range(window.asked_from, len(ids))]


class Answering:
    """A session that gives one answer to every request."""

    def __init__(self, answer):
        self.answer = answer

    def get(self, *_, **__):
        return types.SimpleNamespace(status_code=200, content=json.dumps(self.answer).encode())

    post = get


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_losses_are_those_of_the_server(served, protocol):
    url, state = served
    asked = windows()
    found = dict(scorer(url, protocol=protocol).score(asked))
    assert sorted(found) == [n for n, w in enumerate(asked) if w.asked_from < len(w.ids)]
    for number, losses in found.items():
        assert losses.dtype == np.float32
        np.testing.assert_allclose(losses, expected(asked[number]), rtol=1e-6)
    for path, body in state.asked:
        sampling = body.get("sampling_params", body)
        assert sampling["temperature"] == 1.0
        assert path == ("/generate" if protocol == "sglang" else "/v1/completions")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("nothing", [None, -9999.0, -20000.0, -math.inf, math.nan])
def test_what_has_no_loss(served, protocol, nothing):
    url, state = served
    state.change = lambda found, ids: [*found[:3], nothing, *found[4:]]
    window = Window(np.arange(5, 15), 1)
    ((_, losses),) = scorer(url, protocol=protocol).score([window])
    assert np.isnan(losses).tolist() == [place == 2 for place in range(9)]


def test_failures_that_pass(served):
    url, state = served
    state.statuses = [503, 0, 429, 500, 502, 504]
    (window,) = windows(1)
    ((_, losses),) = scorer(url).score([window])
    np.testing.assert_allclose(losses, expected(window), rtol=1e-6)
    assert len(state.asked) == 7


@pytest.mark.parametrize("address", ["127.0.0.1:9", "localhost:8000", "http://", "http://[x"])
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(ServerError, match=r"^teacher\.server: ") as refused:
        list(scorer(address, requests=1).score(windows(1)))
    assert "tries" not in str(refused.value)


def test_failures_that_stay(served, monkeypatch):
    url, state = served
    monkeypatch.setattr(module, "_TRIES", 2)
    state.statuses = [503] * 9
    with pytest.raises(ServerError, match=r"status 503: .*as asked"):
        list(scorer(url, requests=1).score(windows(3)))
    state.statuses = [0] * 9
    with pytest.raises(ServerError, match=r"no answer after 3 tries .* finished shards are kept"):
        list(scorer(url, requests=1).score(windows(1)))
    state.asked.clear()
    state.statuses = [400] * 9
    with pytest.raises(ServerError, match=r"status 400: .*as asked"):
        list(scorer(url, requests=1).score(windows(1)))
    assert len(state.asked) == 1  # asking again would not help


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("above", [0.5, math.inf, 1e-6])
def test_a_log_probability_above_0(served, protocol, above):
    """Within rounding it is 0."""
    url, state = served
    state.change = lambda found, ids: [*found[:3], above, *found[4:]]
    score = scorer(url, protocol=protocol).score([Window(np.arange(5, 15), 1)])
    if above > 0.1:
        with pytest.raises(ServerError, match=rf"gives a log-probability of {above}; expected"):
            list(score)
    else:
        ((_, losses),) = score
        assert losses[2] == 0
        assert (losses[[1, 3]] > 0).all()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("lie", [lambda found, ids: found[:-1], lambda found, ids: [*found, -1]])
def test_a_prompt_of_another_length(served, protocol, lie):
    url, state = served
    state.change = lie
    if protocol == "sglang":  # which has the ids beside the losses
        state.ids = lambda ids: lie(ids, ids)
    with pytest.raises(ServerError, match=r"truncate|other ids"):
        list(scorer(url, protocol=protocol).score(windows(1)))


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_other_ids_than_were_sent(served, protocol):
    url, state = served
    state.ids = lambda ids: [*ids[:-1], 1]
    with pytest.raises(ServerError, match="read other ids than were sent"):
        list(scorer(url, protocol=protocol).score(windows(1)))


def test_a_server_for_another_protocol():
    asked = scorer("http://x")
    asked._session = Answering({"choices": [{"text": "x"}]})
    asked.__dict__["served"] = module.Served("tiny", None)
    with pytest.raises(ServerError, match=r"no `prompt_logprobs`; .* --teacher.protocol vllm"):
        list(asked.score(windows(1)))


def test_so_many_requests_are_under_way(served):
    url, state = served
    state.gate = threading.Event()
    asked = scorer(url, requests=5)
    _ = asked.served
    found = []
    thread = threading.Thread(target=lambda: found.extend(asked.score(windows(20))))
    thread.start()
    while state.most < 5:
        pass
    state.gate.set()
    thread.join(30)
    assert len(found) == sum(window.asked_from < len(window.ids) for window in windows(20))
    assert state.most == 5


def test_what_the_server_has(served, reader):
    url, state = served
    scorer(url).check(reader)
    with pytest.raises(ServerError, match=r"reads 4,096 tokens .* teacher.context 4,095 needs"):
        ServerScorer(TeacherConfig(server=url, tokenizer="t", context=4095)).check(reader)
    with pytest.raises(ServerError, match=r"has the models tiny; name one with --teacher.model"):
        scorer(url, model="large").check(reader)
    state.models = [*state.models, {"id": "other"}]
    with pytest.raises(ServerError, match="has the models tiny, other; name one"):
        scorer(url).check(reader)
    assert scorer(url, model="other").served == module.Served("other", None)
    state.models = [{"id": "x", "owned_by": "llamacpp"}]
    with pytest.raises(ServerError, match=r"llama.cpp's server gives no log-probabilities"):
        scorer(url).check(reader)


def test_losses_that_change_from_one_time_to_the_next(served, reader):
    url, state = served
    for change, passes in ((0.001, True), (0.2, False)):
        state.change = lambda found, ids, by=change: [
            one and one - by * len(state.asked) for one in found
        ]
        if passes:
            scorer(url).check(reader)
            continue
        with pytest.raises(ServerError, match="gives other losses of the same ids when asked"):
            scorer(url).check(reader)


def test_differences():
    first = np.array([1, 2, np.nan, 3], np.float32)
    assert module.difference(first, first) == 0
    assert module.difference(first, first + np.float32(0.5)) == 0.5
    assert module.difference(first, np.nan_to_num(first)) == math.inf
    assert module.difference(first[:3], first) == math.inf
    assert module.difference(first[2:3], first[2:3]) == 0


@pytest.fixture(scope="module")
def recorded():
    """Answers of a vLLM server, and the losses of the same windows by our own scorer."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("protocol", ["vllm", "openai"])
def test_recorded_answers_of_vllm(recorded, protocol):
    """Requests are as they were recorded, and the losses within a float16 step of ours."""
    config = TeacherConfig(tokenizer="t", context=recorded["context"], protocol=protocol)
    asked = [Window(np.array(one["ids"]), one["asked_from"]) for one in recorded["windows"]]
    with replaying(recorded["exchanges"]) as url:
        real = ServerScorer(dataclasses.replace(config, server=url))
        assert real.served == module.Served("tiny", recorded["context"] + 2)
        found = dict(real.score(asked))
    assert len(found) == len(asked)
    for number, one in enumerate(recorded["windows"]):
        ours = np.array(one["losses"], np.float32)
        step = np.spacing(ours.astype(np.float16)).astype(np.float32)
        assert (np.abs(found[number] - ours) <= step).all()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_damaged_answer_is_refused_or_gives_the_same_losses(recorded, protocol):
    """Each part of an answer removed, of another type, or another number."""
    (one,) = (
        one
        for one in recorded["exchanges"]
        if len((one["body"] or {}).get("prompt", ())) == 8
        and one["body"].get("echo", False) == (protocol == "openai")
    )
    ids, answer = one["body"]["prompt"], one["answer"]
    if protocol == "sglang":
        answer = reply("/generate", {"input_ids": ids}, State())
    asked, window = scorer("http://x", protocol=protocol), Window(np.array(ids), 1)
    asked.__dict__["served"] = module.Served("tiny", None)
    asked._session = Answering(answer)
    ((_, whole),) = asked.score([window])
    refusals, losses = [], []
    for damaged in mutations(answer):
        asked._session = Answering(damaged)
        try:
            losses += [found for _, found in asked.score([window])]
        except ServerError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all(re.fullmatch("http://x.*", words) for words in refusals)
    # A log-probability that is another possible one, or null where some have none, is taken.
    others = [found[found != whole] for found in losses]
    assert max(map(len, others)) <= 1
    assert np.isin(np.nan_to_num(np.concatenate(others)), (0.0, 7.0)).all()


def test_a_damaged_list_of_models_is_refused_or_read(recorded):
    answer = recorded["exchanges"][0]["answer"]
    refusals, lengths = [], set()
    for damaged in mutations(answer):
        asked = scorer("http://x", model="tiny")
        asked._session = Answering(damaged)
        try:
            lengths.add(asked.served.longest)
        except ServerError as error:
            refusals.append(str(error))
    assert lengths == {66, None, 0}
    assert len(refusals) > 20
    assert all(re.fullmatch("http://x.*", words) for words in refusals)


def test_recorded_refusals_of_vllm(recorded):
    """Of a prompt that is too long, and of an id that the model does not have."""
    refused = [one for one in recorded["exchanges"] if one["status"] == 400]
    assert len(refused) == 2
    with replaying(recorded["exchanges"]) as url:
        for one, words in zip(refused, ("max_tokens must be", "out of vocabulary"), strict=True):
            window = Window(np.array(one["body"]["prompt"]), 1)
            with pytest.raises(ServerError, match=rf"status 400: .*{words}"):
                list(scorer(url).score([window]))


def test_computed_answers_look_like_recorded_ones(recorded):
    """What `score_server.serving` gives has no field that vLLM's answers lack."""
    for one in recorded["exchanges"]:
        if one["status"] == 200 and one["body"] is not None:
            ours = reply(one["path"], one["body"], State())["choices"][0]
            theirs = one["answer"]["choices"][0]
            assert ours.keys() <= theirs.keys()
            for name in ours.keys() & {"prompt_logprobs", "prompt_token_ids", "logprobs"}:
                assert type(ours[name]) is type(theirs[name])
                assert len(ours[name]) <= len(theirs[name])
            for mine, its in zip(
                ours.get("prompt_logprobs") or [], theirs["prompt_logprobs"], strict=False
            ):
                assert (mine is None) == (its is None)
                assert mine is None or mine.keys() == its.keys()


def test_the_command(served, corpus, tmp_path, tokenizer_files, capsys):
    """A server that dies in the middle costs a shard; the store ends in the same bytes."""
    url, state = served
    given = ["--teacher.server", url, "--teacher.context", "512", "--shard_bytes", "60"]
    given += ["--teacher.tokenizer", str(tokenizer_files / "teacher.json")]
    given += ["--cache", str(tmp_path / "cache"), "--teacher.requests", "2"]
    command = ["score", str(corpus), *given, "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    store = ScoreStore(tmp_path / "whole")
    assert store.manifest.made_from["teacher"] == "vllm server: tiny"
    assert len(store) == len(TEXTS)
    assert store.num_tokens > 50
    ids = store.document(1)
    assert np.isfinite(ids.nll[1:]).all()
    state.statuses = [200] * (len(state.asked) * 2 // 3) + [400]
    assert main([*command, str(tmp_path / "killed")]) == 2
    assert "status 400" in capsys.readouterr().err
    assert 0 < len(list((tmp_path / "killed").glob("*.arrow"))) < len(store.manifest.shards)
    assert main([*command, str(tmp_path / "killed")]) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    state.models = [{"id": "another"}]
    (tmp_path / "killed" / "manifest.json").unlink()
    assert main([*command, str(tmp_path / "killed")]) == 2
    assert "(vllm server: tiny, now vllm server: another)" in capsys.readouterr().err


def test_a_run_whose_scores_a_server_gives(served, config, tmp_path, tokenizer_files):
    url, state = served
    tokenizer = str(tokenizer_files / "teacher.json")
    teacher = {"model": None, "server": url, "tokenizer": tokenizer, "context": 32}
    assert train_here(config(teacher=teacher, train={"steps": 2})) == 0
    entries, _ = metrics(tmp_path / "run")
    assert len(state.asked) > 2
    assert entries[-1]["threshold"] != 0


def test_what_does_not_go_together():
    for more, words in (
        ({"tokenizer": None}, "teacher.server: needs teacher.tokenizer"),
        ({"gguf_file": "x"}, "teacher.server: excludes teacher.gguf_file"),
        ({"mode": "live"}, "teacher.server: excludes teacher.mode: live"),
        ({"requests": 0}, "teacher.requests must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            TeacherConfig(**{"server": "http://x", "tokenizer": "t"} | more)

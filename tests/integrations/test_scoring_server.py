"""A teacher behind a server, servers that fail or lie, and servers that change their model."""

import dataclasses
import json
import math
import re
import threading
import time
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("requests")

from families import TEXTS
from folders import contents
from mutations import mutations
from runs import metrics, train_here
from score_server import RECORDED, State, log_probability, replaying, reply, serving
from vocagno.cli.app import main
from vocagno.config.teacher import TeacherConfig
from vocagno.data.store.shards import StoreError
from vocagno.integrations import scoring_server as module
from vocagno.integrations.scoring_server import TOLERANCE, ServerEngine, ServerError, ServerScorer
from vocagno.system.shared_work import LOCKS
from vocagno.teacher.candidates import NONE
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import ScoreStore
from vocagno.teacher.transformers_engine import load_scorer
from vocagno.teacher.windows import TextReader, Window
from vocagno.tokens.token_spans import TokenSpans

PROTOCOLS = ("vllm", "openai", "sglang")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
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


def engine(url, reader, context=64, **options):
    config = TeacherConfig(server=url, tokenizer="t", context=context, **options)
    return ServerEngine(types.SimpleNamespace(config=config, reader=reader))


def windows(count=20):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, count)
    return [Window(rng.integers(2, 900, n), min(int(n), 1 + k % 3)) for k, n in enumerate(lengths)]


def expected(window):
    ids = window.ids.tolist()
    return [-log_probability(ids, place) for place in range(window.asked_from, len(ids))]


def answered(answer, **options):
    """A scorer whose server gives one answer to every request for losses."""
    asked = scorer("http://x", **options)
    asked.__dict__["served_model"] = module.Served("tiny", None)
    give(asked, answer)
    return asked


def give(asked, answer):
    content = json.dumps(answer).encode()
    reply = types.SimpleNamespace(status_code=200, content=content)
    asked._session = types.SimpleNamespace(request=lambda *_, **__: reply)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_losses_are_those_of_the_server(served, protocol):
    url, state = served
    asked = windows()
    scores = dict(scorer(url, protocol=protocol).score(asked))
    assert sorted(scores) == [n for n, w in enumerate(asked) if w.asked_from < len(w.ids)]
    for number, losses in scores.items():
        assert losses.dtype == np.float32
        np.testing.assert_allclose(losses, expected(asked[number]), rtol=1e-6)
    for path, body in state.asked:
        assert body.get("sampling_params", body)["temperature"] == 1.0
        assert path == ("/generate" if protocol == "sglang" else "/v1/completions")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("logprob", "loss"),
    [
        *((nothing, math.nan) for nothing in (None, -9999.0, -20000.0, -math.inf, math.nan)),
        (1e-6, 0.0),  # within rounding
        (0.5, ServerError),
        (math.inf, ServerError),
    ],
)
def test_a_number_that_is_no_log_probability_is_no_loss(served, protocol, logprob, loss):
    url, state = served
    state.change = lambda logprobs, ids: [*logprobs[:3], logprob, *logprobs[4:]]
    score = scorer(url, protocol=protocol).score([Window(np.arange(5, 15), 1)])
    if loss is ServerError:
        with pytest.raises(ServerError, match=rf"gives a log-probability of {logprob}; expected"):
            list(score)
    else:
        ((_, losses),) = score
        np.testing.assert_equal(losses[2], loss)
        assert (np.delete(losses, 2) > 0).all()


BY_ID = ("vllm", "sglang")


@pytest.mark.parametrize("protocol", BY_ID)
def test_candidates_of_a_server_are_those_of_transformers(served, teacher_model, protocol):
    """The server has the same model."""
    url, state = served
    spans = TokenSpans(teacher_model)
    config = TeacherConfig(model=str(teacher_model), context=64, candidates=5)
    reference = load_scorer(config, spans, torch.device("cpu"))

    @torch.no_grad()
    def log_p(ids):
        return reference.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    def tops(ids, place, count):
        top = log_p(ids)[place - 1].topk(count)
        return list(zip(top.values.tolist(), top.indices.tolist(), strict=True))

    state.tops = tops
    state.change = lambda _, ids: [
        None,
        *log_p(ids)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist(),
    ]
    rng = np.random.default_rng(0)
    asked = [Window(rng.integers(2, spans.vocabulary_size, n), 1 + n % 3) for n in range(5, 15)]
    server = ServerScorer(
        TeacherConfig(server=url, tokenizer="t", protocol=protocol, candidates=5),
        spans.vocabulary_size,
    )
    scores, expected = (dict(side.score(asked)) for side in (server, reference))
    for number, of_reference in expected.items():
        np.testing.assert_allclose(scores[number].nll, of_reference.nll, rtol=1e-5)
        np.testing.assert_array_equal(scores[number].ids, of_reference.ids)
        assert np.abs(scores[number].codes.astype(int) - of_reference.codes).max() <= 1
    name = "prompt_logprobs" if protocol == "vllm" else "top_logprobs_num"
    assert {body[name] for _, body in state.asked} == {5}


def test_a_server_without_candidates_or_without_their_ids_is_refused():
    answer = reply("/generate", {"input_ids": [5, 6]}, State())
    asked = answered(answer, protocol="sglang", candidates=5)
    with pytest.raises(ServerError, match="gives candidates for 0 of 2 ids"):
        list(asked.score([Window(np.array([5, 6]), 1)]))
    state = State()
    state.tops = lambda *_: [(-1.0, -7)]
    body = {"prompt": [5, 6], "prompt_logprobs": 1}
    asked = answered(reply("/v1/completions", body, state), candidates=1)
    with pytest.raises(ServerError, match="gives a candidate '-7', which is no id"):
        list(asked.score([Window(np.array([5, 6]), 1)]))


def read_damaged(asked, answer, read):
    """What is read of an answer with each part removed, of another type, or another number, where
    it is not refused; and how many of them are."""
    readings, refusals = [], []
    for damaged in mutations(answer):
        give(asked, damaged)
        try:
            readings.append(read(asked))
        except ServerError as error:
            refusals.append(str(error))
    assert all(re.fullmatch("http://x.*", words) for words in refusals)
    return readings, len(refusals)


def read_window(window):
    def read(asked):
        ((_, scores),) = asked.score([window])
        return scores

    return read


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BY_ID)
def test_damaged_candidates_are_refused_or_those_of_one_token(protocol):
    read = read_window(Window(np.arange(5, 9), 1))
    path = "/generate" if protocol == "sglang" else "/v1/completions"
    body = {"input_ids": [5, 6, 7, 8], "top_logprobs_num": 2, "prompt_logprobs": 2}
    answer = reply(path, body, State())
    asked = answered(answer, protocol=protocol, candidates=2)
    whole, num_changed = read(asked), 0
    several, refusals = read_damaged(asked, answer, read)
    for scores in several:
        is_other = (scores.ids != whole.ids).any(1) | (scores.codes != whole.codes).any(1)
        assert is_other.sum() <= 1
        assert ((scores.ids >= 0) & (scores.ids < 1 << 24) == (scores.codes != NONE)).all()
        num_changed += is_other.any()
    assert refusals > 100
    assert num_changed


def test_requests_are_repeated_until_the_server_answers(served):
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


@pytest.mark.parametrize(
    ("status", "words", "tries"),
    [
        (503, r"status 503: .*as asked", 3),
        (0, r"no answer after 3 tries .* finished shards are kept", 3),
        (400, r"status 400: .*as asked", 1),  # asking again would not help
    ],
)
def test_a_failure_that_stays_ends_after_its_tries(served, monkeypatch, status, words, tries):
    """Sees a request that is repeated where asking again cannot help."""
    url, state = served
    monkeypatch.setattr(module, "_RETRIES", 2)
    state.statuses = [status] * 9
    with pytest.raises(ServerError, match=words):
        list(scorer(url, requests=1).score(windows(1)))
    assert len(state.asked) == tries


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_another_prompt_than_was_sent(served, protocol):
    url, state = served
    for lie in (lambda entries: entries[:-1], lambda entries: [*entries, -1]):
        state.change = lambda logprobs, ids, lie=lie: lie(logprobs)
        if protocol == "sglang":  # which has the ids beside the losses
            state.ids = lie
        with pytest.raises(ServerError, match=r"truncate|other ids"):
            list(scorer(url, protocol=protocol).score(windows(1)))
    if protocol != "openai":  # which does not say what it has read
        state.change, state.ids = State().change, lambda ids: [*ids[:-1], 1]
        with pytest.raises(ServerError, match="read other ids than were sent"):
            list(scorer(url, protocol=protocol).score(windows(1)))


def test_a_server_for_another_protocol():
    asked = answered({"choices": [{"text": "x"}]})
    with pytest.raises(ServerError, match=r"no `prompt_logprobs`; .* --teacher.protocol vllm"):
        list(asked.score(windows(1)))


def test_so_many_requests_are_under_way(served):
    url, state = served
    state.gate = threading.Event()
    asked = scorer(url, requests=5)
    _ = asked.served_model
    scores = []
    thread = threading.Thread(target=lambda: scores.extend(asked.score(windows(20))))
    thread.start()
    end = time.monotonic() + 30
    while state.most < 5:
        assert time.monotonic() < end, f"only {state.most} requests at a time"
    state.gate.set()
    thread.join(30)
    assert len(scores) == sum(window.asked_from < len(window.ids) for window in windows(20))
    assert state.most == 5


def test_a_server_without_the_model_or_context_is_refused(served, reader):
    url, state = served
    engine(url, reader).check()
    state.models = [*state.models, {"id": "other"}]
    assert scorer(url, model="other").served_model == module.Served("other", None)
    with pytest.raises(ServerError, match="has the model tiny, not other; correct --teacher"):
        scorer(url, model="other", protocol="sglang").served_model  # noqa: B018 - asks the server
    for options, models, words in (
        ({"context": 4095}, None, r"reads 4,096 tokens .* teacher.context 4,095 needs"),
        ({"model": "large"}, None, r"has the models tiny, other; name one with --teacher.model"),
        ({}, None, "has the models tiny, other; name one"),
        ({}, [{"id": "x", "owned_by": "llamacpp"}], r"llama.cpp's server gives no log-prob"),
    ):
        state.models = models or state.models
        model = {"model": "tiny"} if "context" in options else {}
        with pytest.raises(ServerError, match=words):
            engine(url, reader, **options, **model).check()


@pytest.mark.parametrize(("change", "passes"), [(0.001, True), (0.2, False)])
def test_losses_that_change_from_one_time_to_the_next(served, reader, change, passes):
    url, state = served
    state.change = lambda logprobs, ids: [p and p - change * len(state.asked) for p in logprobs]
    if passes:
        engine(url, reader).check()
    else:
        with pytest.raises(ServerError, match="gives other losses of the same ids when asked"):
            engine(url, reader).check()


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        (0.0, r"gives the loss -?0 for every token of a text of \d{3};"),
        (-2.5, "gives the loss 2.5 for every token"),
        (None, "gives no loss for any token"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_computes_nothing_is_refused(served, reader, protocol, constant, words):
    url, state = served
    state.change = lambda logprobs, ids: [logprob and constant for logprob in logprobs]
    with pytest.raises(ServerError, match=words):
        engine(url, reader, protocol=protocol).check()


def test_losses_that_are_missing_elsewhere_differ_infinitely():
    """Sees a missing loss that is compared as a number."""
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
    config = TeacherConfig(
        tokenizer="t", context=recorded["context"], server="http://x", protocol=protocol
    )
    asked = [Window(np.array(entry["ids"]), entry["asked_from"]) for entry in recorded["windows"]]
    with replaying(recorded["exchanges"]) as url:
        real = ServerScorer(dataclasses.replace(config, server=url))
        assert real.served_model == module.Served("tiny", recorded["context"] + 2)
        losses = dict(real.score(asked))
    assert len(losses) == len(asked)
    for number, entry in enumerate(recorded["windows"]):
        our_losses = np.array(entry["losses"], np.float32)
        step = np.spacing(our_losses.astype(np.float16)).astype(np.float32)
        assert (np.abs(losses[number] - our_losses) <= step).all()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_damaged_answer_is_refused_or_gives_the_same_losses(recorded, protocol):
    (exchange,) = (
        exchange
        for exchange in recorded["exchanges"]
        if len((exchange["body"] or {}).get("prompt", ())) == 8
        and exchange["body"].get("echo", False) == (protocol == "openai")
    )
    ids, answer = exchange["body"]["prompt"], exchange["answer"]
    if protocol == "sglang":
        answer = reply("/generate", {"input_ids": ids}, State())
    asked, read = answered(answer, protocol=protocol), read_window(Window(np.array(ids), 1))
    whole = read(asked)
    losses, refusals = read_damaged(asked, answer, read)
    assert refusals > 100
    # A log-probability that is another possible one, or null where some have none, is taken.
    changed = [reading[reading != whole] for reading in losses]
    assert max(map(len, changed)) <= 1
    assert np.isin(np.nan_to_num(np.concatenate(changed)), (0.0, 7.0)).all()


def test_a_damaged_list_of_models_is_refused_or_read(recorded):
    def longest(asked):
        asked.__dict__.pop("served_model", None)
        return asked.served_model.longest

    answer = recorded["exchanges"][0]["answer"]
    lengths, refusals = read_damaged(scorer("http://x", model="tiny"), answer, longest)
    assert set(lengths) == {66, None, 0}
    assert refusals > 20


def test_recorded_refusals_of_vllm(recorded):
    """Of a prompt that is too long, and of an id that the model does not have."""
    refused = [entry for entry in recorded["exchanges"] if entry["status"] == 400]
    assert len(refused) == 2
    with replaying(recorded["exchanges"]) as url:
        for entry, words in zip(refused, ("max_tokens must be", "out of vocabulary"), strict=True):
            window = Window(np.array(entry["body"]["prompt"]), 1)
            with pytest.raises(ServerError, match=rf"status 400: .*{words}"):
                list(scorer(url).score([window]))


def test_computed_answers_look_like_recorded_ones(recorded):
    """What `score_server.serving` gives has no field that vLLM's answers lack."""
    for exchange in recorded["exchanges"]:
        if exchange["status"] == 200 and exchange["body"] is not None:
            choice = reply(exchange["path"], exchange["body"], State())["choices"][0]
            vllm_choice = exchange["answer"]["choices"][0]
            assert choice.keys() <= vllm_choice.keys()
            for name in choice.keys() & {"prompt_logprobs", "prompt_token_ids", "logprobs"}:
                assert type(choice[name]) is type(vllm_choice[name])
                assert len(choice[name]) <= len(vllm_choice[name])
            for logprobs, vllm_logprobs in zip(
                choice.get("prompt_logprobs") or [], vllm_choice["prompt_logprobs"], strict=False
            ):
                assert (logprobs is None) == (vllm_logprobs is None)
                assert logprobs is None or logprobs.keys() == vllm_logprobs.keys()


@pytest.fixture
def score(served, corpus, tmp_path, tokenizer_files):
    """`vocagno score` into a folder, with the server of this test."""
    options = ["--teacher.server", served[0], "--teacher.context", "512", "--shard_bytes", "200"]
    options += ["--teacher.tokenizer", str(tokenizer_files / "teacher.json")]
    options += ["--cache", str(tmp_path / "cache"), "--teacher.requests", "2"]

    def run(name, *extra_options):
        return main(["score", str(corpus), *options, *extra_options, "--out", str(tmp_path / name)])

    return run


@pytest.mark.slow
def test_score_resumes_after_the_server_has_failed(served, score, tmp_path, capsys):
    """A server that dies in the middle costs a shard; the store ends in the same bytes."""
    _, state = served
    assert score("whole") == 0
    store = ScoreStore(tmp_path / "whole")
    assert store.manifest.made_from["teacher"] == "vllm server: tiny"
    assert len(store) == len(TEXTS)
    assert store.num_tokens > 50
    assert np.isfinite(store.document(1).nll[1:]).all()
    state.statuses = [200] * (len(state.asked) * 2 // 3) + [400]
    assert score("killed") == 2
    assert "status 400" in capsys.readouterr().err
    assert 0 < len(list((tmp_path / "killed").glob("*.arrow"))) < len(store.manifest.shards)
    assert score("killed") == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    state.models = [{"id": "another"}]
    (tmp_path / "killed" / "manifest.json").unlink()
    assert score("killed") == 2
    assert "(vllm server: tiny, now vllm server: another)" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_with_candidates(served, score, tmp_path):
    assert score("losses") == score("store", "--candidates", "4") == 0
    without, store = (ScoreStore(tmp_path / name) for name in ("losses", "store"))
    for number in range(len(store)):
        document = store.document(number, candidates=True)
        np.testing.assert_array_equal(document.nll, without.document(number).nll)
        has_loss = np.isfinite(document.nll)
        assert ((document.candidates.ids >= 0).any(1) == has_loss).all()


@pytest.mark.slow
def test_a_run_whose_scores_a_server_gives(served, config, tmp_path, tokenizer_files):
    url, state = served
    tokenizer = str(tokenizer_files / "teacher.json")
    teacher = {"model": None, "server": url, "tokenizer": tokenizer, "context": 32}
    assert train_here(config(teacher=teacher, train={"steps": 2})) == 0
    entries, _ = metrics(tmp_path / "run")
    assert len(state.asked) > 2
    assert entries[-1]["threshold"] != 0


def another_model(state, by=0.5):
    """Every loss of the server becomes larger; its name remains."""
    state.change = lambda logprobs, ids: [logprob and logprob - by for logprob in logprobs]


@pytest.mark.slow
def test_another_model_in_the_middle_of_a_shard(served, score, tmp_path):
    """The server is started again with another model, and the client reconnects."""
    _, state = served
    assert score("whole") == 0
    asked = len(state.asked)

    def changing(logprobs, ids):
        later = len(state.asked) > asked + asked // 2
        return [logprob and logprob - 0.5 * later for logprob in logprobs]

    state.change = changing
    assert score("store") == 2
    whole, partial = contents(tmp_path / "whole"), contents(tmp_path / "store")
    assert 0 < len(partial) < len(whole) - 1
    assert all(whole[name] == data for name, data in partial.items())


def test_another_model_at_resume_and_other_batches_of_one(served, score, tmp_path, capsys):
    url, state = served
    state.statuses = [200] * 12 + [400]
    assert score("store") == 2
    before = contents(tmp_path / "store")
    another_model(state)
    capsys.readouterr()
    assert score("store") == 2
    words = capsys.readouterr().err
    assert f"the scores here are of another model than tiny at {url} has now" in words
    assert "differ by 0.5 nats a token" in words
    assert "serve the model of these scores again, or name another folder" in words
    assert contents(tmp_path / "store") == before
    another_model(state, by=TOLERANCE / 2)
    assert score("store") == 0


@pytest.mark.slow
def test_parts_and_finished_stores(served, score, tmp_path, capsys, tokenizer_files):
    """Parts are made without locks. A finished store is not said to be of the new model."""
    url, state = served
    assert score("parts", "--shards", "1/2") == 0
    another_model(state)
    assert score("parts", "--shards", "2/2") == 2
    assert score("parts", "--shards", "1/2") == 2
    another_model(state, by=0)
    assert score("parts", "--shards", "2/2") == 0
    assert main(["scores", "finish", str(tmp_path / "parts")]) == 0
    assert score("parts") == 0
    another_model(state)
    assert score("parts") == 2
    assert "are of another model" in capsys.readouterr().err
    files = {"tokenizer": str(tokenizer_files / "teacher.json"), "context": 512}
    teacher = ConfiguredTeacher(
        TeacherConfig(server=url, **files), tmp_path / "cache", torch.device("cpu")
    )
    with pytest.raises(StoreError, match="are of another model"):  # `teacher.scores`
        teacher.scores(lambda: None, tmp_path / "parts", show_progress=False)
    (tmp_path / "parts" / LOCKS / "probe.json").unlink()  # a copy without it
    assert score("parts") == 0


def test_the_probe_is_noted_and_compared(served, reader, tmp_path):
    """A text and its losses. The text counts that was noted, even by another release."""
    url, state = served
    state.change = lambda logprobs, ids: [*logprobs[:3], None, *logprobs[4:]]
    asked = engine(url, reader)
    asked.guard(tmp_path)
    path = tmp_path / LOCKS / "probe.json"
    assert not path.exists()
    asked.guard(tmp_path, note=True)
    noted = json.loads(path.read_bytes())
    assert noted["text"] == module.PROBE
    assert noted["losses"].count(None) == 1
    assert len(noted["losses"]) > 100
    path.write_text(json.dumps({"text": "another text", "losses": [1.0, 2.0]}))
    with pytest.raises(StoreError, match="differ by inf nats a token"):
        asked.guard(tmp_path, note=True)
    path.write_text('{"text": "cut of')
    with pytest.raises(StoreError, match=r"probe\.json: this note .* is damaged"):
        asked.guard(tmp_path)
    path.unlink()
    (tmp_path / "shard-00000.arrow").touch()  # a copy of scores without the note
    with pytest.raises(StoreError, match=r"has scores, but not .*probe\.json"):
        asked.guard(tmp_path, note=True)
    asked.guard(tmp_path)  # to read them it is not needed

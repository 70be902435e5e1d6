"""vLLM in process: what it is asked for, and what becomes of its answers.

Another module stands for vLLM; `test_real_server.py` has the real one.
"""

import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from folders import contents
from stand_in_vllm import LLM, stand_in
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.integrations import vllm_engine
from vocagno.integrations.vllm_engine import VllmEngine, VllmError
from vocagno.teacher.score_store import ScoreStore
from vocagno.teacher.transformers_engine import load_scorer
from vocagno.teacher.windows import Window

CPU = torch.device("cpu")
SPANS = types.SimpleNamespace(vocabulary_size=400)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    vllm = stand_in()
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    for name in vllm_engine._ENVIRONMENT:
        monkeypatch.setenv(name, "1")
    return vllm


def engine(folder, **options):
    config = TeacherConfig(model=str(folder), engine="vllm", **options)
    return VllmEngine(types.SimpleNamespace(config=config, device=CPU, spans=SPANS))


def scorer_of(folder, **options):
    return engine(folder, **options).load()


def window(length=10, asked_from=1):
    return Window(np.arange(5, 5 + length, dtype=np.int64), asked_from)


def all_losses(folder):
    store = ScoreStore(folder)
    return np.concatenate([store.document(n).nll for n in range(len(store))])


@pytest.mark.slow
def test_scores_of_vllm_are_ours_and_name_the_engine(teacher_model, corpus, tmp_path, capsys):
    """The losses are ours, also over windows that overlap; the engine stands in what they are
    made from."""
    command = ["score", str(corpus), "--teacher.model", str(teacher_model)]
    command += ["--teacher.context", "16", "--teacher.batch_tokens", "2"]
    command += ["--cache", str(tmp_path / "cache"), "--out"]
    assert main([*command, str(tmp_path / "ours")]) == 0
    assert LLM.made == []
    assert main([*command, str(tmp_path / "theirs"), "--teacher.engine", "vllm"]) == 0
    our_losses, vllm_losses = (all_losses(tmp_path / name) for name in ("ours", "theirs"))
    assert len(our_losses) > 500
    assert (np.isnan(our_losses) == np.isnan(vllm_losses)).all()
    np.testing.assert_allclose(vllm_losses, our_losses, rtol=2e-3)
    (llm,) = LLM.made
    assert len(llm.calls) > 5  # so that progress is shown
    assert max(map(max, llm.calls)) == 17
    made_from = [ScoreStore(tmp_path / name).manifest.made_from for name in ("ours", "theirs")]
    assert made_from[1] == made_from[0] | {"engine": "vllm"}
    before = contents(tmp_path / "ours")
    assert main([*command, str(tmp_path / "ours"), "--teacher.engine", "vllm"]) == 2
    assert "finished scores of another engine (None, now vllm)" in capsys.readouterr().err
    assert contents(tmp_path / "ours") == before


def test_candidates_are_those_of_transformers(teacher_model):
    """And those of ids that pad the model are none."""
    spans = TokenSpans(teacher_model)
    config = TeacherConfig(model=str(teacher_model), candidates=5, context=64)
    scorer, reference = scorer_of(teacher_model, candidates=5), load_scorer(config, spans, CPU)
    assert (LLM.made[0].options["max_logprobs"], scorer._params.prompt_logprobs) == (5, 5)
    asked = [window(10), window(20, 7)]
    scores, expected = (dict(side.score(asked)) for side in (scorer, reference))
    for number, of_reference in expected.items():
        np.testing.assert_allclose(scores[number].nll, of_reference.nll, rtol=1e-5)
        in_both = of_reference.ids < SPANS.vocabulary_size
        np.testing.assert_array_equal(
            scores[number].ids[in_both.all(1)], of_reference.ids[in_both.all(1)]
        )
        assert in_both.mean() > 0.5
        assert (scores[number].ids < SPANS.vocabulary_size).all()
        near = scores[number].codes.astype(int) - of_reference.codes
        assert np.abs(near[in_both.all(1)]).max() <= 1


def test_what_vllm_is_asked_for(teacher_model, monkeypatch):
    for name in vllm_engine._ENVIRONMENT:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")  # the user's word counts
    scorer = scorer_of(teacher_model, context=32, batch_tokens=100, dtype="bfloat16")
    (llm,) = LLM.made
    assert vllm_engine.os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert vllm_engine.os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    expected = {"dtype": "bfloat16", "max_model_len": 34, "max_num_batched_tokens": 100}
    expected |= {"max_num_seqs": 100, "load_format": "safetensors"}
    assert expected.items() <= llm.options.items()
    assert list(scorer.score([])) == []
    asked = [window(), window(1), window(4, 4), window(4, 3)]
    losses = dict(scorer.score(asked))
    assert sorted(losses) == [0, 3]
    assert [len(losses[number]) for number in (0, 3)] == [9, 1]
    assert losses[0].dtype == np.float32
    assert (llm.params.prompt_logprobs, llm.params.temperature, llm.params.max_tokens) == (0, 1, 1)


@pytest.mark.parametrize("logprob", [None, -np.inf, np.nan, 0.5])
def test_a_number_that_is_no_log_probability_is_no_loss(teacher_model, logprob):
    def change(flat):
        flat.logprobs[2] = logprob
        return flat

    scorer = scorer_of(teacher_model)
    LLM.change = staticmethod(change)
    if logprob == 0.5:
        with pytest.raises(VllmError, match=r"vllm gives a log-probability of 0\.5; expected"):
            list(scorer.score([window()]))
        return
    for asked_from, place in ((1, 2), (3, 0)):
        ((_, losses),) = scorer.score([window(asked_from=asked_from)])
        assert np.flatnonzero(~np.isfinite(losses)).tolist() == [place]


def lacks_the_last(flat):
    flat.start_indices.pop()
    flat.end_indices.pop()
    return flat


def has_another_token(flat):
    flat.token_ids[3] = 1
    return flat


def has_none_in_the_middle(flat):
    flat.end_indices[4] = flat.start_indices[4]
    return flat


@pytest.mark.parametrize(
    "change", [lambda flat: None, lacks_the_last, has_another_token, has_none_in_the_middle]
)
def test_log_probabilities_of_other_tokens(teacher_model, change):
    scorer = scorer_of(teacher_model)
    LLM.change = staticmethod(change)
    with pytest.raises(VllmError, match=r"of other tokens than it was asked for; use teacher\.eng"):
        list(scorer.score([window()]))


def test_a_missing_vllm_is_named_at_once(teacher_model, corpus, tmp_path, monkeypatch, capsys):
    """It is said before the weights are hashed."""
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    command = ["score", str(corpus), "--teacher.model", str(teacher_model)]
    command += ["--teacher.engine", "vllm", "--cache", str(tmp_path / "cache")]
    assert main(command) == 2
    assert "teacher.engine: vllm is not installed; install" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "weights").exists()


def test_teachers_that_vllm_cannot_run_are_refused(teacher_model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"set teacher\.context to at most 2046"):
        engine(teacher_model, context=2047).check()
    fits = engine(teacher_model, context=2046)
    fits.check()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="is not for a launch of several processes"):
        fits.check()
    tiny_llama(100).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer: 400 ids, but teacher\.model has 100"):
        scorer_of(tmp_path)
    monkeypatch.setattr(LLM, "__init__", lambda *_, **__: 1 / 0)
    with pytest.raises(ConfigError, match=r"teacher\.engine: vllm: ZeroDivisionError"):
        scorer_of(teacher_model)

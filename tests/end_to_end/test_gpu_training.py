"""Training and scoring on a CUDA device: the losses of the CPU, and steps that the host does not
wait for."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_device import DEVICE, needs_cuda, no_waiting
from runs import metrics, train_here
from tiny_models import tiny_llama
from vocagno.config.options import OptimizerConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.models.batching import keeps_apart
from vocagno.models.head import hidden_states, language_head
from vocagno.models.loading import load_teacher, local_device
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.windows import Window
from vocagno.training.step import Stepper, build_optimizer, settle_optimizer

pytestmark = needs_cuda


METHODS = {
    "stored": {},
    "cpt": {"guidance": {"method": "cpt"}},
    "mean": {"guidance": {"unmapped": "mean"}},
    "isolated": {"data": {"isolate": True}},
    "chunk": {"guidance": {"method": "chunk", "chunks": 4}},
    "checkpointing": {"train": {"gradient_checkpointing": True}},
    "live": {"teacher": {"mode": "live"}, "guidance": {"unmapped": "mean"}},
    "uld": {"teacher": {"mode": "live"}, "guidance": {"method": "uld"}},
    "rho1": {
        "teacher": {"mode": "live"},
        "guidance": {"method": "rho1", "criterion": "excess_and_entropy"},
    },
    "kld": {"teacher": {"mode": "live"}, "guidance": {"method": "kld"}},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_the_host_does_not_wait_in_a_step(
    method, precision, tmp_path, config, same_vocabulary_model, monkeypatch
):
    sections = dict(METHODS[method])
    schedule = {"steps": 4, "log_every": 4, "global_batch": 4, "micro_batch": 2}
    sections["train"] = schedule | {"precision": precision} | sections.get("train", {})
    if method in ("kld", "rho1"):
        sections["teacher"] = {"model": str(same_vocabulary_model), **sections["teacher"]}
    path, steps, step = config(**sections), [], Stepper.step

    def watched(self, number, *arguments, **options):
        steps.append(number)
        if len(steps) <= 2:  # what is set up once may wait
            return step(self, number, *arguments, **options)
        with no_waiting():
            return step(self, number, *arguments, **options)

    monkeypatch.setattr(Stepper, "step", watched)
    assert train_here(path) == 0
    assert len(steps) == 4
    assert np.isfinite([entry["loss"] for entry in metrics(tmp_path / "run")[0]]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_those_of_a_plain_call(dtype):
    model = tiny_llama(50, max_position_embeddings=2048).to(DEVICE, dtype)
    language_head(model)  # the first pass notes which masks are asked for
    ids = torch.randint(0, 50, (2, 2048), device=DEVICE)
    with torch.inference_mode():
        with no_waiting():
            states = hidden_states(model, ids)
        plain = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.equal(states, plain)


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_scores_are_those_of_the_cpu(batching):
    model = tiny_llama(50)
    generator = np.random.default_rng(0)
    windows = [Window(generator.integers(0, 50, n), 1) for n in (2, 40, 9, 33, 21)]
    options = {"batch_tokens": 64, "width": 64, "batching": batching}
    expected = dict(TransformersScorer(model, **options).score(windows))
    scorer = TransformersScorer(model.to(DEVICE), **options)
    device_losses = dict(scorer.score(windows))
    for number, losses in expected.items():
        np.testing.assert_allclose(device_losses[number], losses, atol=1e-4)
    passes = list(scorer.passes(windows))
    with no_waiting():
        for one_pass in passes:
            scorer.losses(one_pass)


def test_an_optimizer_that_was_loaded_does_not_wait():
    model = tiny_llama(50).to(DEVICE)
    device = local_device()
    optimizer = build_optimizer(model, OptimizerConfig(), device)
    ids = torch.randint(0, 50, (2, 16), device=DEVICE)

    def backward():
        model(input_ids=ids, labels=ids).loss.backward()

    backward()
    optimizer.step()
    kept = optimizer.state_dict()
    again = build_optimizer(model, OptimizerConfig(), device)
    again.load_state_dict(kept)
    settle_optimizer(again, device)
    again.step()
    with no_waiting():
        again.step()
    assert all(bool(group["fused"]) is (DEVICE == "cuda") for group in again.param_groups)


def test_documents_are_seen_to_be_kept_apart_in_bfloat16():
    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }
    model = tiny_llama(1_000, **sizes).to(DEVICE, torch.bfloat16)
    assert keeps_apart(model)
    forward = model.base_model.forward

    def deaf(*arguments, attention_mask=None, position_ids=None, **options):
        return forward(*arguments, **options)

    model.base_model.forward = deaf
    assert not keeps_apart(model)


def test_a_teacher_is_loaded_onto_the_device(teacher_model):
    config = TeacherConfig(model=str(teacher_model))
    model = load_teacher(config, local_device())
    assert {parameter.device.type for parameter in model.parameters()} == {DEVICE}
    expected = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    assert {parameter.dtype for parameter in model.parameters()} == {expected}

"""Students with PEFT adapters."""

import pytest

pytest.importorskip("torch")
peft = pytest.importorskip("peft")

import torch

from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.models.head import UnsupportedModelError, without_wrapper
from vocagno.training.student import GuidedStudent

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def adapted(**options):
    model = peft.get_peft_model(tiny_llama(40), peft.LoraConfig(**LORA | options))
    with torch.no_grad():  # else the second factor is zero, and adapters change nothing
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_model_without_adapters_stays_as_it_is():
    model = tiny_llama(40)
    assert without_wrapper(model) is model


def test_the_loss_and_the_gradients_are_those_of_all_logits():
    model = adapted()
    ids = torch.arange(24).view(2, 12) % 40
    student = GuidedStudent(model, GuidanceConfig(method="cpt"))
    labels = ids.roll(-1, 1)
    output = student(ids, labels)
    output.loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    logits = model(ids).logits
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum"
    )
    expected.backward()
    torch.testing.assert_close(output.loss, expected)
    assert found
    assert all("lora_" in name for name in found)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)
            assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
    ],
)
def test_adapters_of_the_embedding_or_the_head_are_refused(options):
    model = peft.get_peft_model(tiny_llama(40), peft.LoraConfig(**LORA | options))
    with pytest.raises(UnsupportedModelError, match="replaces the embedding or the language head"):
        GuidedStudent(model, GuidanceConfig(top_fraction=0.4))


def test_learned_prompts_are_refused():
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModelError, match="learned prompts"):
        without_wrapper(peft.get_peft_model(tiny_llama(40), settings))

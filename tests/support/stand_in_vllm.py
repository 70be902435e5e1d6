"""A module that stands for vLLM: what our engine uses of it, computed by transformers."""

import types
from importlib.machinery import ModuleSpec
from typing import ClassVar

import torch
from transformers import AutoModelForCausalLM


class LLM:
    """Has the options that it was made with, and the lengths of every call."""

    made: ClassVar = []
    change = staticmethod(lambda flat: flat)
    """Of the log-probabilities of a prompt."""

    def __init__(self, model, **options):
        self.options = options
        self.calls = []
        dtype = getattr(torch, options["dtype"])
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        LLM.made.append(self)

    def generate(self, prompts, params, *, use_tqdm):
        assert not use_tqdm
        self.params = params
        prompts = [prompt["prompt_token_ids"] for prompt in prompts]
        self.calls.append([len(ids) for ids in prompts])
        count = params.prompt_logprobs
        assert count <= self.options["max_logprobs"]
        return [types.SimpleNamespace(prompt_logprobs=self.flat(ids, count)) for ids in prompts]

    @torch.inference_mode()
    def flat(self, ids, count):
        """As vLLM's `FlatLogprobs`: the first token has no log-probability; the others have their
        own, then those of the most likely ones."""
        if len(ids) >= self.options["max_model_len"]:
            raise ValueError("the prompt and the token to generate are longer than max_model_len")
        logits = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        prompt_ids = torch.tensor(ids[1:], dtype=torch.int64)[:, None]
        shown = torch.cat([prompt_ids, logits[:-1].topk(count).indices], 1)
        starts = [place * (1 + count) for place in range(len(ids) - 1)]
        return LLM.change(
            types.SimpleNamespace(
                start_indices=[0, *starts],
                end_indices=[0, *(start + 1 + count for start in starts)],
                token_ids=shown.flatten().tolist(),
                logprobs=logits[:-1].gather(1, shown).flatten().tolist(),
            )
        )


class SamplingParams(types.SimpleNamespace):
    pass


def stand_in():
    """The module, as it was before any use."""
    module = types.ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams, module.TokensPrompt = LLM, SamplingParams, dict
    LLM.made, LLM.change = [], staticmethod(lambda flat: flat)
    return module

"""verl's `sft_loss` with baked weights, and its asker of teachers behind `examples/on_policy.py`.

PYTHONPATH=benches:examples python -m bridges.verl MATERIAL

verl's trainers start Ray and an engine on accelerators. What is called here is what they call: the
loss of `SFTTrainer`, whose `loss_mask` has the weights, and `compute_teacher_logprobs_single`, with
a server that is a table of drawn log-probabilities.
"""

import asyncio
import os
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.experimental.teacher_loop.teacher_manager import AsyncTeacherLLMServerManager
from verl.workers.utils.losses import sft_loss

from bridges.comparison import LENGTH, VOCABULARY, Rows, Run, of_rows, plain_loop, report
from vocagno import TokenSpans


class Tiny(torch.nn.Module):
    """Logits from an embedding and a layer: the loss is verl's, not the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.mixed = torch.nn.GRU(32, 32, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(32, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.head(self.mixed(self.embedding(ids_BT))[0])


def as_jagged(values_BT: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor(list(values_BT), layout=torch.jagged)


def loss_of_verl(model: Tiny, ids_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """verl's engine rolls ids and mask to the left; what wraps around has weight 0."""
    weights_BT = weights_BT.clone()
    weights_BT[:, 0] = 0
    log_p_BTV = model(ids_BT).log_softmax(-1)
    log_p_BT = log_p_BTV.gather(-1, ids_BT.roll(-1, 1)[..., None]).squeeze(-1)
    data = TensorDict(
        {
            "loss_mask": as_jagged(weights_BT),
            "dp_size": 1,
            "batch_num_tokens": len(ids_BT) * LENGTH,
        },
        batch_size=[],
    )
    return sft_loss(None, {"log_probs": as_jagged(log_p_BT)}, data)[0]


def train(model: Tiny, rows: Rows) -> Run:
    steps = zip(rows.ids_SBT, rows.weights_SBT, strict=True)
    return plain_loop(model, (lambda s=s: loss_of_verl(model, *s) for s in steps))


def check_teacher(material: Path) -> None:
    """The rows that verl keeps add up to the teacher's log-probability of the response.

    Raises: AssertionError if they do not.
    """
    os.environ["STUDENT_TOKENIZER"] = str(material / "student")
    os.environ["TEACHER_TOKENIZER"] = str(material / "teacher")
    from on_policy import AcrossTokenizers, text_of

    asked: list[list[int]] = []

    async def generate(prompt_ids: list[int], **_: Any) -> Any:
        """verl reads logprobs of the prompt, as its vLLM server answers."""
        asked.append(prompt_ids)
        drawn = np.log(np.random.default_rng(len(prompt_ids)).uniform(0.1, 1, len(prompt_ids)))
        rows = [[float(log_p)] for log_p in [*drawn[1:], 0.0]]
        ids = [[index] for index in [*prompt_ids[1:], 0]]
        return SimpleNamespace(extra_fields={"prompt_ids": ids, "prompt_logprobs": rows})

    manager = AsyncTeacherLLMServerManager.__new__(AsyncTeacherLLMServerManager)
    settings = SimpleNamespace(inference=SimpleNamespace(temperature=1.0))
    manager.teacher_model_configs = {"teacher": settings}
    manager.teacher_client = {"teacher": SimpleNamespace(generate=generate)}
    manager.distillation_loss_config = SimpleNamespace(
        topk=None, loss_settings=SimpleNamespace(use_topk=False)
    )
    student = TokenSpans(material / "student")
    prompt, response = (student.encode([text]).ids for text in ("12 + 7?\n", "12 + 7 = 19"))
    logprobs = np.full(len(response), -0.5)
    bridge = AcrossTokenizers(manager)
    ids, rows = asyncio.run(
        bridge.compute_teacher_logprobs(prompt.tolist(), response.tolist(), logprobs)
    )
    assert ids.shape == rows.shape == (len(prompt) + len(response), 1)
    assert ids[len(prompt) - 1 : -1, 0].tolist() == response.tolist()
    of_teacher = TokenSpans(material / "teacher").encode([text_of(response)]).ids
    assert asked[0][-len(of_teacher) :] == of_teacher.tolist()
    drawn = np.log(np.random.default_rng(len(asked[0])).uniform(0.1, 1, len(asked[0])))
    total, expected = rows[len(prompt) - 1 : -1].sum().item(), drawn[-len(of_teacher) :].sum()
    assert np.isclose(total, expected, rtol=1e-5), (total, expected)


def main() -> None:
    material = Path(sys.argv[1])
    check_teacher(material)
    rows = Rows.read(material / "tokens.npy")
    torch.manual_seed(0)
    model = Tiny()
    bridge = train(deepcopy(model), rows)
    permuted, _ = train(deepcopy(model), rows.permute())
    report(
        "verl",
        bridge,
        of_rows(model, rows),
        permuted,
        compared="`sft_loss` with weights as `loss_mask`, in a loop of ours, and "
        "`compute_teacher_logprobs_single` behind `AcrossTokenizers`",
        differs="Ray, the engine and the server of the teacher did not run",
    )


if __name__ == "__main__":
    main()

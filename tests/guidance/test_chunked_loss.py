"""Which operations run on a GPU, of what shapes and types: on fake tensors, without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from vocagno.guidance import chunked_loss as chunked_loss_module
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss
from vocagno.models.head import LanguageHead

TOKENS, HIDDEN, VOCABULARY = 5_000, 64, 32_000


class Products(TorchDispatchMode):
    """Notes the name of each product and the shape and type of what it gives."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if "mm" in function.name():
            self.seen.append((function.name(), tuple(result.shape), result.dtype))
        return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("adds", [True, False])
def test_the_gradient_of_the_weights_is_added_up_in_float32(dtype, adds, monkeypatch):
    if adds and not chunked_loss_module._ADDS_IN_FLOAT32:
        pytest.skip("this torch has no addmm with out_dtype")
    monkeypatch.setattr(chunked_loss_module, "_ADDS_IN_FLOAT32", adds)
    with FakeTensorMode(), Products() as products:
        states = torch.empty(TOKENS, HIDDEN, dtype=dtype, device="cuda", requires_grad=True)
        weight = torch.empty(VOCABULARY, HIDDEN, dtype=dtype, device="cuda", requires_grad=True)
        labels = torch.empty(TOKENS, dtype=torch.int64, device="cuda")
        total, parts = chunked_loss(states, LanguageHead(weight), CrossEntropy(labels))
    assert (total.device.type, total.dtype) == ("cuda", torch.float32)
    assert tuple(parts.shape) == (TOKENS, 1)
    sums = [seen for seen in products.seen if seen[1] == (VOCABULARY, HIDDEN)]
    in_place = "aten::addmm_" if dtype == torch.float32 else "aten::addmm.dtype_out"
    name = in_place if adds or dtype == torch.float32 else "aten::mm.dtype"
    assert sums == [(name, (VOCABULARY, HIDDEN), torch.float32)] * 3  # chunks
    logits = [seen for seen in products.seen if seen[1][1] == VOCABULARY]
    assert [shape for _, shape, _ in logits] == [(rows, VOCABULARY) for rows in (2_048, 2_048, 904)]
    assert {dtype for _, _, dtype in logits} == {torch.float32}


@pytest.mark.parametrize("trained", ["weight bias", "weight", "bias", ""])
def test_what_is_frozen_of_a_head_has_no_gradient_to_keep(monkeypatch, trained):
    """As under LoRA: it would be as large as the head, in float32."""
    monkeypatch.setattr("vocagno.models.head.chunk_rows", lambda *_: 4)
    states = torch.randn(10, 8)
    head = {"weight": torch.randn(20, 8), "bias": torch.randn(20)}
    losses, gradients = [], []
    for names in ("weight bias", trained):
        given = {"states": states, **head}
        leaves = {
            name: values.clone().requires_grad_(name == "states" or name in names.split())
            for name, values in given.items()
        }
        objective = CrossEntropy(torch.arange(10))
        of_head = LanguageHead(leaves["weight"], leaves["bias"], 2.0, 3.0)
        total, _ = chunked_loss(leaves["states"], of_head, objective)
        kept = [one for one in total.grad_fn.saved_tensors if one is not None]
        assert len(kept) == 1 + len(names.split())
        total.backward()
        losses.append(total)
        gradients.append({name: leaf.grad for name, leaf in leaves.items()})
    assert losses[0] == losses[1]
    for name, expected in gradients[0].items():
        found = gradients[1][name]
        assert (found is None) == (name not in ("states", *trained.split()))
        assert found is None or torch.equal(found, expected)

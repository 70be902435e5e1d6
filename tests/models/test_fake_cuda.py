"""The losses of a step on fake CUDA tensors: without a GPU, a tensor on another device, a product
that CUDA does not have, and a host that waits for the device are seen, too.

Autograd's engine has no fake device: the node that a loss puts into the graph is called directly.
"""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance import chunked_loss as chunked_loss_module
from vocagno.guidance.batch import GuidanceTensors
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss
from vocagno.guidance.methods import method_of
from vocagno.models import head as head_module
from vocagno.models.head import LanguageHead
from vocagno.models.losses import TeacherStates, chunked_entropy, chunked_nll

ROWS, LENGTH, HIDDEN, VOCABULARY = 4, 64, 24, 50
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


class LikeCuda(TorchDispatchMode):
    """Refuses what fake tensors accept: products of two types, and copies between devices, for
    which the host waits unless memory is pinned."""

    def __init__(self):
        super().__init__()
        self.converted, self.products = [], []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        result = function(*arguments, **options)
        leaves = tree_leaves((arguments, options, result))
        tensors = [tensor for tensor in leaves if isinstance(tensor, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() or tensor.is_cuda}
        assert len(devices) < 2, f"{function}: a copy between devices"
        if function.name() == "aten::_to_copy":
            self.converted.append(tuple(result.shape))
        if function.name().startswith(("aten::mm", "aten::addmm")):
            left, right = [tensor for tensor in arguments if isinstance(tensor, torch.Tensor)][-2:]
            assert left.dtype == right.dtype, f"{function}: {left.dtype} times {right.dtype}"
            widens = ".dtype" in function.name()
            assert not widens or left.dtype in DTYPES[:2], f"{function}: float32 from {left.dtype}"
            self.products.append((function.name(), tuple(result.shape), result.dtype))
        return result


@pytest.fixture(autouse=True)
def on_fake_cuda(monkeypatch):
    """Inside, tensors on `cuda` have no data; autocast and several chunks as on a GPU."""
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    for name, value in (("CUDA_CHUNK_ELEMENTS", 24 * 50), ("LEAST_ROWS", 1), ("TILE_ROWS", 8)):
        monkeypatch.setattr(head_module, name, value)
    with FakeTensorMode(), LikeCuda() as mode:
        yield mode


def drawn(*shape, dtype=torch.float32, **options):
    return torch.empty(*shape, dtype=dtype, device="cuda", **options)


def ids(*shape):
    return drawn(*shape, dtype=torch.int64)


def tensors(**fields):
    """All that a method may ask for; groups of two tokens."""
    floats = {name: drawn(ROWS, LENGTH) for name in ("teacher_loss", "weight", "entropy")}
    numbers = {name: ids(ROWS, LENGTH) for name in ("groups", "chunks")}
    ends = list(range(2, ROWS * LENGTH + 1, 2))
    arguments = floats | numbers | fields
    return GuidanceTensors(**arguments, teacher_sums=drawn(ROWS, 2), chunk_ends=ends, num_kept=37)


def gradients(loss):
    """What the loss of the head in a graph gives its inputs."""
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "_ChunkedLossBackward":
            return [gradient for gradient in node.apply(drawn(()), None) if gradient is not None]
        waiting += [following for following, _ in node.next_functions if following is not None]
    pytest.fail("no loss of the head in the graph")


CASES = {
    "default": GuidanceConfig(),
    "paper": GuidanceConfig(top_fraction=0.4),
    "paper, mean": GuidanceConfig(top_fraction=0.4, unmapped="mean"),
    "threshold": GuidanceConfig(max_threshold=-1.0),
    "rho1": GuidanceConfig(method="rho1", criterion="excess_and_entropy"),
    "chunk": GuidanceConfig(method="chunk", chunks=8),
    "kld": GuidanceConfig(method="kld"),
    "uld": GuidanceConfig(method="uld"),
    "cpt": GuidanceConfig(method="cpt"),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_stays_on_the_device_without_waiting(case, precision):
    method, dtype = method_of(CASES[case]), torch.bfloat16 if "pure" in precision else torch.float32
    hidden, weight, bias = (
        drawn(*shape, dtype=dtype, requires_grad=True)
        for shape in ((ROWS, LENGTH, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,))
    )
    head = LanguageHead(weight, bias, 0.5, 30.0)
    of_teacher = drawn(70, HIDDEN, dtype=dtype), LanguageHead(drawn(60, HIDDEN, dtype=dtype))
    states = TeacherStates(*of_teacher, ids(ROWS, LENGTH), VOCABULARY if case == "kld" else None)
    teacher = tensors(teacher_states=states, labels=ids(ROWS, LENGTH))
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        output = method.loss(hidden, head, teacher)
    assert [tensor.dtype.itemsize for tensor in output] == [4, 8, 4, 4]  # the sums are float64
    assert {tensor.device.type for tensor in output} == {"cuda"}
    for gradient in gradients(output.loss):
        assert (gradient.device.type, gradient.dtype) == ("cuda", dtype)


@pytest.mark.parametrize("of_head", DTYPES)
@pytest.mark.parametrize("of_states", DTYPES)
def test_losses_are_float32_for_states_and_heads_of_any_types(of_states, of_head, on_fake_cuda):
    states, head = drawn(99, 8, dtype=of_states), LanguageHead(drawn(50, 8, dtype=of_head))
    nll, entropy = chunked_nll(states, head, ids(99)), chunked_entropy(states, head)
    is_as_it_is = of_states == of_head in DTYPES[:2]  # CUDA widens these products itself
    assert on_fake_cuda.converted.count((50, 8)) <= (0 if is_as_it_is else 2)  # of two losses
    for tensor in (head.logits(states), head.for_chunks().logits(states), nll, entropy):
        assert (tensor.device.type, tensor.dtype) == ("cuda", torch.float32)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_every_type(dtype, adds, monkeypatch, on_fake_cuda):
    """Those of the weights are added up in float32, chunk by chunk."""
    if adds and not chunked_loss_module._ADDS_IN_FLOAT32:
        pytest.skip("this torch does not add products to a float32 sum")
    monkeypatch.setattr(chunked_loss_module, "_ADDS_IN_FLOAT32", adds)
    hidden, weight = (drawn(n, 8, dtype=dtype, requires_grad=True) for n in (99, 50))
    loss, parts = chunked_loss(hidden, LanguageHead(weight), CrossEntropy(ids(99)))
    assert [gradient.dtype for gradient in gradients(loss)] == [dtype, dtype]
    assert (loss.device.type, loss.dtype, tuple(parts.shape)) == ("cuda", torch.float32, (99, 1))
    plain = {torch.float32: "aten::addmm_", torch.float64: "aten::mm"}  # no product is widened
    name = plain.get(dtype, "aten::addmm.dtype_out" if adds else "aten::mm.dtype")
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    sums = [product for product in on_fake_cuda.products if product[1] == (50, 8)]
    logits = [product for product in on_fake_cuda.products if product[1][1] == 50]
    assert sums == [(name, (50, 8), kind)] * len(logits)
    assert [shape[0] for _, shape, _ in logits] == [24, 24, 24, 24, 3]
    assert {kind for _, _, kind in logits} == {torch.float32}


@pytest.mark.parametrize(
    ("release", "adds"),
    [("2.8.0", False), ("2.9.1+cu128", False), ("2.11.0+cu130", True), ("2.11.0a0+git", True)],
)
def test_old_releases_of_torch_add_products_in_two_steps(release, adds):
    assert chunked_loss_module._adds_in_float32(release) is adds

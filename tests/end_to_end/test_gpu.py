"""On a CUDA device: the same answers as on the CPU, without the host waiting."""

from contextlib import nullcontext

import numpy as np
import pytest

import vocagno

torch = pytest.importorskip("torch")

import head_losses
from architectures import build
from cuda_device import DEVICE, needs_cuda, no_waiting
from vocagno.alignment.segments import segment_reduce
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance import GuidanceTensors, token_weights
from vocagno.guidance.methods import method_of
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.models import head as head_module
from vocagno.models.head import LanguageHead
from vocagno.models.losses import TeacherStates, chunked_nll
from vocagno.training.step import GuidedStudent

pytestmark = needs_cuda


def batch(rows=4, length=64):
    generator = torch.Generator().manual_seed(0)
    student = torch.randint(0, 5, (rows, length), generator=generator).float()
    teacher = torch.randint(0, 3, (rows, length), generator=generator).float()
    teacher[:, ::7] = torch.nan
    labels = torch.randint(0, 50, (rows, length), generator=generator)
    labels[:, -3:] = -100
    return student, teacher, labels


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
def test_weights_and_ties_are_those_of_the_cpu(scope, unmapped):
    config = GuidanceConfig(scope=scope, unmapped=unmapped, top_fraction=0.4)
    tensors = batch()
    with no_waiting():
        on_device = [tensor.to(DEVICE, non_blocking=True) for tensor in tensors]
        weights = token_weights(*on_device, config)
    assert torch.equal(weights.cpu(), token_weights(*tensors, config))


def test_a_count_of_other_guidance_gives_no_loss():
    """On the CPU it is an error."""
    _, teacher, labels = (tensor.to(DEVICE) for tensor in batch())
    hidden, weight = (torch.ones(*shape, 8, device=DEVICE) for shape in (labels.shape, (50,)))
    arguments = hidden, weight.requires_grad_(), labels, teacher, GuidanceConfig(top_fraction=0.4)
    if DEVICE == "cpu":
        with pytest.raises(ValueError, match="num_kept is 9"):
            selective_cross_entropy(*arguments, num_kept=9)
    else:
        assert selective_cross_entropy(*arguments, num_kept=9)[0].isnan()


@pytest.mark.parametrize("how", ["max", "mean", "sum", "min"])
def test_reduction_is_that_of_rust(how):
    rng = np.random.default_rng(0)
    losses = rng.exponential(2, 5_000).astype(np.float32)
    losses[::11] = np.nan
    first = rng.integers(0, 4_000, 3_000)
    mapping = np.stack([first, first + rng.integers(1, 1_000, 3_000)], 1).astype(np.int32)
    mapping[::13] = -1
    tensors = [torch.from_numpy(array) for array in (losses, mapping)]
    with no_waiting():
        on_device = [tensor.to(DEVICE, non_blocking=True) for tensor in tensors]
        result = segment_reduce(*on_device, how)
    np.testing.assert_allclose(result.cpu(), vocagno.reduce(losses, mapping, how), rtol=1e-5)


@pytest.mark.parametrize("how", ["loop", "torch", "liger"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_head_loss_gives_the_gradients_of_all_logits(how, precision, monkeypatch):
    for name, value in (("CUDA_CHUNK_ELEMENTS", 24 * 50), ("LEAST_ROWS", 1), ("TILE_ROWS", 8)):
        monkeypatch.setattr(head_module, name, value)  # several chunks
    if how not in ("loop", *head_losses.installed(torch.device(DEVICE))):
        pytest.skip("not installed, or only for CUDA")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 64, 32, generator=generator).to(DEVICE).requires_grad_()
    weight = torch.randn(50, 32, generator=generator).to(DEVICE).requires_grad_()
    _, teacher, labels = (tensor.to(DEVICE) for tensor in batch())
    guidance = GuidanceConfig(top_fraction=0.4)
    way = nullcontext() if how == "loop" else head_losses.in_place_of_ours(how)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"), way:
        loss, metrics = selective_cross_entropy(hidden, weight, labels, teacher, guidance)
    loss.backward()
    gradients = [hidden.grad.clone(), weight.grad.clone()]
    hidden.grad = weight.grad = None
    logits = hidden @ weight.T
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    ).view(labels.shape)
    (nll * metrics.weights_BT).sum().backward()
    for gradient, expected in zip(gradients, (hidden.grad, weight.grad), strict=True):
        difference = (gradient - expected).norm() / expected.norm()
        assert difference <= (1e-5 if precision == "fp32" else 2e-2)


def test_an_own_head_gives_the_gradients_of_all_logits():
    model = build("bert", is_decoder=True, vocab_size=50).to(DEVICE)
    _, teacher, labels = (tensor.to(DEVICE) for tensor in batch())
    ids = labels.clamp_min(0)[:, :32]
    with pytest.warns(UserWarning, match="its own code computes them"):
        student = GuidedStudent(model, GuidanceConfig(top_fraction=0.4))
    output = student(ids, labels[:, :32], teacher[:, :32])
    output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    logits = model(ids, use_cache=False).logits.flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(logits, labels[:, :32].flatten(), reduction="none")
    (nll * output.weights_BT.flatten()).sum().backward()
    for name, parameter in model.named_parameters():
        difference = (gradients[name] - parameter.grad).norm()
        assert difference <= 1e-4 * (1 + parameter.grad.norm()), name


@pytest.mark.parametrize("of_head", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("of_states", [torch.float32, torch.bfloat16, torch.float64])
def test_states_and_heads_of_two_types_give_the_losses_of_the_cpu(of_states, of_head):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(99, 32, generator=generator).to(of_states)
    weight = torch.randn(50, 32, generator=generator).to(of_head)
    labels = torch.randint(0, 50, (99,), generator=generator)
    expected = chunked_nll(states, LanguageHead(weight), labels)
    nll = chunked_nll(states.to(DEVICE), LanguageHead(weight.to(DEVICE)), labels.to(DEVICE))
    torch.testing.assert_close(nll.cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["kld", "uld"])
def test_distillation_is_that_of_the_cpu_and_does_not_make_the_host_wait(method):
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 64, 32), (50, 32), (30, 24), (60, 24)
    hidden, weight, states, teacher_weight = (
        torch.randn(*shape, generator=generator) for shape in shapes
    )
    _, _, labels = batch()
    partner = torch.randint(-1, 30, labels.shape, generator=generator)
    outputs, guidance = {}, GuidanceConfig(method=method)
    for device in ("cpu", DEVICE):
        leaves = [leaf.to(device).requires_grad_() for leaf in (hidden, weight)]
        head = LanguageHead(teacher_weight.to(device))
        teacher = TeacherStates(states.to(device), head, partner.to(device))
        arguments = labels.to(device), teacher
        for context in (nullcontext, no_waiting):  # what is set up once may wait
            with context():
                student = LanguageHead(leaves[1])
                loss, _ = method_of(guidance).distill(leaves[0], student, *arguments)
                gradients = torch.autograd.grad(loss, leaves)
        outputs[device] = [loss.detach().cpu(), *(gradient.cpu() for gradient in gradients)]
    for output, expected in zip(outputs[DEVICE], outputs["cpu"], strict=True):
        torch.testing.assert_close(output, expected, atol=1e-3, rtol=1e-3)


def test_chunks_are_those_of_the_cpu():
    student, teacher, labels = batch()
    chunks = (torch.arange(64) // 8).expand(4, 64).contiguous()
    teacher = teacher.nan_to_num()[:, :8].repeat_interleave(8, 1)  # one for all of a chunk
    config = GuidanceConfig(method="chunk", chunks=8)

    def weights_of(nll, losses, labels, chunks):
        guidance_tensors = GuidanceTensors(teacher_loss=losses, chunks=chunks)
        return token_weights(nll, guidance_tensors, labels, config)

    tensors = student, teacher, labels, chunks
    with no_waiting():
        on_device = [tensor.to(DEVICE, non_blocking=True) for tensor in tensors]
        weights = weights_of(*on_device)
    assert torch.equal(weights.cpu(), weights_of(*tensors))

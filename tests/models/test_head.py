"""Chunks of logits, and students with PEFT adapters."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss
from vocagno.models import head as head_module
from vocagno.models.head import LanguageHead, UnsupportedModelError, chunks, without_wrapper
from vocagno.training.step import GuidedStudent


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 50),
    st.booleans(),
    st.sampled_from(["cpu", "cuda"]),
)
def test_chunks_cover_all_tokens_and_end_where_they_may(lengths, size, may_end_anywhere, device):
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocagno.models.head.chunk_rows", lambda *_: size)
        given_ends = None if may_end_anywhere else ends
        places = list(chunks(total, 1, torch.device(device), given_ends))
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == total
    longest = max(place.stop - place.start for place in places)
    if may_end_anywhere:
        assert longest <= size + size // 32
    else:
        assert {place.stop for place in places} <= set(ends.tolist())
        assert longest <= size + size // 32 + 2 * max(lengths)


@pytest.mark.parametrize("ends", [None, np.r_[3:2048:3, 2048]], ids=["anywhere", "threes"])
def test_no_chunk_is_for_a_few_tokens_that_are_left(ends):
    """2,048 tokens are six chunks of 341, and two tokens."""
    places = list(chunks(2048, 49_152, torch.device("cpu"), ends))
    assert len(places) == 6
    assert all(338 <= place.stop - place.start <= 345 for place in places)
    room = LanguageHead(torch.empty(49_152, 1)).room_for(2048)
    assert room.shape == (361, 49_152)


@pytest.mark.parametrize(
    ("vocabulary", "rows", "rows_on_a_cpu"),
    [(32_000, 2_048, 524), (128_256, 512, 256), (151_936, 384, 256), (256_000, 256, 256)],
)
def test_chunks_on_a_gpu_are_whole_tiles(vocabulary, rows, rows_on_a_cpu):
    assert head_module.chunk_rows(vocabulary, torch.device("cuda")) == rows
    assert head_module.chunk_rows(vocabulary, torch.device("cpu")) == rows_on_a_cpu


LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


@pytest.fixture(scope="module")
def peft():
    return pytest.importorskip("peft")


def adapted(peft, **options):
    model = peft.get_peft_model(tiny_llama(40), peft.LoraConfig(**LORA | options))
    with torch.no_grad():  # else the second factor is zero, and adapters change nothing
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_model_without_adapters_stays_as_it_is():
    model = tiny_llama(40)
    assert without_wrapper(model) is model


def test_the_loss_and_the_gradients_are_those_of_all_logits(peft):
    model = adapted(peft)
    ids = torch.arange(24).view(2, 12) % 40
    student = GuidedStudent(model, GuidanceConfig(method="cpt"))
    labels = ids.roll(-1, 1)
    output = student(ids, labels)
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    logits = model(ids).logits
    flat = logits.flatten(0, 1), labels.flatten()
    expected = torch.nn.functional.cross_entropy(*flat, reduction="sum")
    expected.backward()
    torch.testing.assert_close(output.loss, expected)
    assert gradients
    assert all("lora_" in name for name in gradients)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)
            assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("option", ["target_modules", "modules_to_save"])
@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_adapters_of_the_embedding_or_the_head_are_refused(peft, option, module):
    config = peft.LoraConfig(**LORA | {option: [*LORA.get(option, []), module]})
    model = peft.get_peft_model(tiny_llama(40), config)
    with pytest.raises(UnsupportedModelError, match="replaces the embedding or the language head"):
        GuidedStudent(model, GuidanceConfig(top_fraction=0.4))


def test_learned_prompts_are_refused(peft):
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModelError, match="learned prompts"):
        without_wrapper(peft.get_peft_model(tiny_llama(40), settings))


needs_precisions = pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch cannot be told a precision"
)


@needs_precisions
@pytest.mark.parametrize("states", ["bfloat16", "float32"])
@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
@pytest.mark.parametrize("convert", ["not", "for_chunks", "as_type"])
def test_only_exact_operands_are_multiplied_as_bfloat16(monkeypatch, states, weights, convert):
    """Rounding a float32 operand would lose 16 bits of it. A setting that stayed would round all
    later products of the process."""
    torch.manual_seed(0)
    states_CH = torch.randn(40, 64).to(getattr(torch, states))
    weight_VH = torch.randn(900, 64).to(getattr(torch, weights))
    head = LanguageHead(weight_VH)
    if convert == "for_chunks":
        head = head.for_chunks()
    elif convert == "as_type":
        head = head.as_type(torch.float32)
    precisions, product = [], torch.mm

    def recorded(*args, **kwargs):
        precisions.append(torch.backends.mkldnn.matmul.fp32_precision)
        return product(*args, **kwargs)

    monkeypatch.setattr(head_module, "_HAS_BFLOAT16_TILES", True)
    monkeypatch.setattr(torch, "mm", recorded)
    before = torch.backends.mkldnn.matmul.fp32_precision
    logits_CV = head.logits(states_CH, head.room_for(40))
    assert precisions == ["bf16" if states == weights == "bfloat16" else before]
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    exact_CV = states_CH.double() @ weight_VH.double().T
    torch.testing.assert_close(logits_CV.double(), exact_CV, atol=1e-4, rtol=0)


@needs_precisions
@pytest.mark.parametrize("num_kept", [8, 300])
def test_gradients_by_tiles_are_those_of_float64(monkeypatch, num_kept):
    """The operands are rounded to bfloat16, also the gradient of the logits; the sums are not.
    Chunks of 300 and more rows add to one another, few kept rows of a chunk are moved together."""
    torch.manual_seed(0)
    states_KH = torch.randn(600, 32).bfloat16().requires_grad_()
    weight_VH = torch.randn(500, 32).bfloat16().requires_grad_()
    labels_K, weights_K = torch.randint(500, (600,)), torch.zeros(600)
    weights_K[:num_kept] = 1.0
    monkeypatch.setattr(head_module, "_HAS_BFLOAT16_TILES", True)
    monkeypatch.setattr("vocagno.models.head.chunk_rows", lambda *_: 300)
    objective = CrossEntropy(labels_K, weights_K)
    total, _ = chunked_loss(states_KH, LanguageHead(weight_VH), objective)
    total.backward()
    exact_KH, exact_VH = (t.detach().double().requires_grad_() for t in (states_KH, weight_VH))
    losses = torch.nn.functional.cross_entropy(exact_KH @ exact_VH.T, labels_K, reduction="none")
    exact_total = (losses * weights_K).sum()
    exact_total.backward()
    assert total.item() == pytest.approx(exact_total.item(), rel=1e-5)
    for gradient, exact in ((states_KH.grad, exact_KH.grad), (weight_VH.grad, exact_VH.grad)):
        assert gradient.dtype == torch.bfloat16
        largest = exact.abs().max()
        torch.testing.assert_close(gradient.double(), exact, rtol=0, atol=float(largest) / 100)
    assert torch.equal(states_KH.grad[num_kept:], torch.zeros(600 - num_kept, 32).bfloat16())
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


@needs_precisions
def test_the_last_of_two_threads_restores_the_precision():
    """The second one would take the first one's setting for that of the process, and leave it."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(head_module.products_of_tiles())
        second.enter_context(head_module.products_of_tiles())
        first.close()
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        second.close()
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_a_head_rounded_to_bfloat16_and_back_is_known_to_be_exact():
    head = LanguageHead(torch.randn(9, 4))
    assert not head.as_type(torch.float32).is_widened
    rounded = head.as_type(torch.bfloat16)
    assert not rounded.is_widened
    assert rounded.as_type(torch.float32).first(3).is_widened
    assert not rounded.as_type(torch.float32).as_type(torch.float64).is_widened

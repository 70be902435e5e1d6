"""Which sequences are read together, in rows with little padding, and what keeps them apart."""

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import build
from shared_data import shared, shared_texts
from vocagno import TokenSpans

torch = pytest.importorskip("torch")

from tiny_models import tiny_llama
from vocagno.errors import ConfigError
from vocagno.models.batching import buckets, check_isolation, isolation, keeps_apart, lay_out, packs
from vocagno.teacher.windows import cuts


def check(rows_of_batches, lengths, batch_tokens):
    batches = list(rows_of_batches)
    numbers = sorted(number for batch in batches for row in batch for number in row)
    assert numbers == list(range(len(lengths)))
    for batch in batches:
        widths = [sum(lengths[number] for number in row) for row in batch]
        assert len(batch) == 1 or max(1, max(widths)) * len(batch) <= batch_tokens
    return batches


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200), st.integers(1, 80))
def test_every_sequence_is_read_once(lengths, batch_tokens, width):
    for batch in check(buckets(lengths, batch_tokens), lengths, batch_tokens):
        assert all(len(row) == 1 for row in batch)
    for batch in check(packs(lengths, batch_tokens, width), lengths, batch_tokens):
        for row in batch:
            assert sum(lengths[number] for number in row) <= max(width, lengths[row[0]])


def test_the_longest_sequence_goes_first():
    """The longest first, each into the fullest row with room."""
    assert list(packs([3, 9, 5, 6, 1, 4], 20, 10)) == [[[1, 4], [3, 5]], [[2, 0]]]
    assert list(buckets([3, 9, 5, 6, 1, 4], 10)) == [[[1]], [[3]], [[2], [5]], [[0], [4]]]


def test_a_layout_by_hand():
    sequences = [np.array(ids) for ids in ([1, 2], [3], [4, 5, 6, 7])]
    layout = lay_out([[0, 1], [2]], sequences)
    assert layout.ids_BT.tolist() == [[1, 2, 3, 0], [4, 5, 6, 7]]
    assert layout.piece_BT.tolist() == [[0, 0, 1, -1], [0, 0, 0, 0]]
    assert layout.first_places == [0, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base-uncased", "qwen2.5", "tinyllama"])
def test_less_than_five_per_cent_of_a_batch_is_padding(name):
    """Real documents in shards of 2 MB, as `score` reads them."""
    spans = TokenSpans(shared("tokenizers", f"{name}.json.gz"))
    sizes = np.diff(spans.encode(shared_texts("math-train")[:270]).cu_seqlens).tolist()
    cut = [w.stop - w.start for size in sizes for w in cuts(size, 2048, 512)]
    for plan in (buckets(cut, 8192), packs(cut, 8192, 2048)):
        places = sum(
            len(batch) * max(sum(cut[number] for number in row) for row in batch) for batch in plan
        )
        assert 1 - sum(cut) / places < 0.05


def with_another_kernel(model, difference):
    """The model, whose logits differ by rounding if attention has a mask, as on a GPU."""
    forward, generator = model.forward, torch.Generator().manual_seed(0)
    factor = 1 + difference * torch.randn(model.config.vocab_size, generator=generator)

    def rounded(attention_mask=None, **options):
        output = forward(attention_mask=attention_mask, **options)
        output.logits *= 1 if attention_mask is None else factor
        return output

    model.forward = rounded
    return model


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_another_kernel_is_no_leak(dtype, least):
    for attention, expected in (("sdpa", True), ("eager", False)):
        model = tiny_llama(50, attn_implementation=attention).to(dtype)
        assert keeps_apart(with_another_kernel(model, least)) is expected


def test_a_mask_that_changes_everything_is_refused():
    """The pieces do not see each other, but are read otherwise than without a mask."""
    for dtype, most in ((torch.float32, 0.03), (torch.bfloat16, 3.0)):
        model = tiny_llama(50, attn_implementation="sdpa").to(dtype)
        assert not keeps_apart(with_another_kernel(model, most))


def test_full_memory_is_no_sign_of_a_leak(monkeypatch):
    model = tiny_llama(50)
    monkeypatch.setattr(model, "forward", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        keeps_apart(model)


def test_a_mask_made_on_a_device_stays_there():
    """Fake tensors of a GPU that need not be there; an operation between devices is an error."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = isolation(torch.zeros(2, 16, dtype=torch.int32, device="cuda"))
    of_device = dict.fromkeys(("position_ids", "attention_mask"), "cuda")
    assert {name: value.device.type for name, value in made.items()} == of_device
    assert made["attention_mask"].shape == (2, 1, 16, 16)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("jamba", {}),
        ("llama", {"attn_implementation": "eager"}),
    ],
)
def test_models_that_read_across_documents_are_refused(kind, options):
    """New weights are so small that logits differ by less than 1e-3; trained ones would not."""
    attention = options.get("attn_implementation", "sdpa")
    words = rf"data\.isolate: .* with {attention} attention does not keep packed documents apart"
    with pytest.raises(ConfigError, match=words):
        check_isolation(build(kind, **options), 32)


def test_a_mask_that_would_undo_a_sliding_window_is_refused():
    model = build("mistral", sliding_window=24, num_hidden_layers=1)
    check_isolation(model, 24)
    words = r"data\.isolate: MistralForCausalLM attends to 24 tokens"
    with pytest.raises(ConfigError, match=words):
        check_isolation(model, 25)
    # Qwen names a window that none of its layers has, unless it is told to.
    full = {"layer_types": ["full_attention"], "num_hidden_layers": 1}
    check_isolation(build("qwen2", sliding_window=24, **full), 25)

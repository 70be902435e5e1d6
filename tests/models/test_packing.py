"""Whether packed documents are kept apart, where a mask changes the kernel of the attention."""

import pytest

torch = pytest.importorskip("torch")

from tiny_models import tiny_llama
from vocagno.models.packing import keeps_apart


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

"""Operations of models, and peaks of devices."""

import pytest

torch = pytest.importorskip("torch")

from architectures import build
from tiny_models import tiny_llama
from vocagno.models import throughput


def test_operations_of_a_model_by_hand():
    model = tiny_llama(50)
    layer = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32
    weights = 2 * layer + 32 + 50 * 32  # and no table of embeddings
    assert throughput.model_flops(model, 64) == 6 * weights + 12 * 2 * 32 * 64
    tied = tiny_llama(50, tie_word_embeddings=True)
    assert throughput.model_flops(tied, 64) == throughput.model_flops(model, 64)
    without_count = build("blt")  # its configuration has layers of several kinds
    assert throughput.model_flops(without_count, 64) == throughput.model_flops(without_count, 1) > 0


def test_peaks_are_known_by_name(monkeypatch):
    cuda = torch.device("cuda")
    for name, peak in (
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("Other", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert throughput.peak_flops(cuda, "bf16") == peak
    assert throughput.peak_flops(cuda, "fp32") is None
    assert throughput.peak_flops(torch.device("cpu"), "bf16") is None

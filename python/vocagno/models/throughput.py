"""Operations of a model, and how many of them a device can do in a second (MFU)."""

from typing import Any

import torch

from vocagno.errors import ConfigError

PEAK_BF16 = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}
"""Dense bfloat16 operations a second with float32 sums, from the makers' data sheets, by a part of
the name that torch gives a device; the first that fits."""


USED = 0.35
"""Share of the peak that a run is assumed to reach where it is not measured. Without compilation
the paper's student reaches at most 0.36 to 0.41 (`benches/plan.py`)."""


def named_peak(gpu: str) -> float:
    """The peak of a GPU by a name of `PEAK_BF16`. Raises: ConfigError for another name."""
    if gpu not in PEAK_BF16:
        known = ", ".join(PEAK_BF16)
        raise ConfigError(f"--gpu: the peak of {gpu} is not known; known are {known}")
    return PEAK_BF16[gpu]


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Of one device, if it is known."""
    if device.type != "cuda" or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_BF16.items() if part in name), None)


def model_flops(model: Any, seq_len: int) -> float:
    """Operations that naive training takes for each token: 6 for each weight that it is multiplied
    with, 12 * layers * hidden size * length for attention (PaLM, arXiv 2204.02311, appendix B).

    Guided training takes fewer, so its MFU says how many naive ones it replaces.
    """
    config = model.config.get_text_config()
    weights = sum(parameter.numel() for parameter in model.parameters())
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is not embedding.weight:  # a table that is looked up is not multiplied with
        weights -= embedding.weight.numel()
    attention = 12 * config.num_hidden_layers * config.hidden_size * seq_len
    return float(6 * weights + attention)


def reading_flops(model: Any, seq_len: int) -> float:
    """Operations of a forward pass for each token: a third of `model_flops`."""
    return model_flops(model, seq_len) / 3


def unloaded(settings: Any) -> Any:
    """A causal language model of these settings without weights, to count them."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(settings)

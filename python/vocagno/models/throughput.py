"""Counts the operations that training a model takes for a token, and lists those that devices can
do in a second. Both are needed for the model FLOPs utilisation (MFU).
"""

from typing import Any

import torch

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
"""Dense bfloat16 operations per second with float32 sums, from the makers' data sheets, by a part
of the name that torch gives a device. The first part that fits counts: longer names come first."""


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Returns the peak operations per second of a device in `PEAK_BF16`; None for any other device,
    and for a precision other than bf16."""
    if device.type != "cuda" or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_BF16.items() if part in name), None)


def model_flops(model: Any, seq_len: int) -> float:
    """Counts the operations that naive training takes for each token: 6 for each weight that it is
    multiplied with, 12 * layers * hidden size * length for attention (PaLM, arXiv 2204.02311,
    appendix B).

    Guided training takes fewer, so its MFU says how many naive ones it replaces. Attention is not
    counted for a model whose configuration has no single number of layers (BLT). All experts of a
    mixture are counted, although a token is multiplied with some of them.
    """
    config = model.config.get_text_config()
    weights = sum(parameter.numel() for parameter in model.parameters())
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is not embedding.weight:  # a table that is looked up is not multiplied with
        weights -= embedding.weight.numel()
    layers, width = (getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size"))
    return float(6 * weights + 12 * layers * width * seq_len)

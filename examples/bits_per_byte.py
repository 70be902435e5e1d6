"""Compares two models with different tokenizers on one text, and puts them together.

python examples/bits_per_byte.py MODEL OTHER text.txt

A loss per token depends on how long tokens are; per byte it does not. Between the places where both
tokenizers agree, the losses of both are of the same text: there one sees which model knows better
what, and half the one's probability with half the other's is a model again, at least as good as the
two are on average.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import vocagno
from vocagno.models.weights import causal_model, largest_input


def losses(name: str, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Byte spans of the tokens, and the loss of each in nats."""
    tokens = vocagno.TokenSpans.from_pretrained(name).encode([text])
    model = causal_model(name, "MODEL", dtype=torch.float32).eval()
    start = model.config.bos_token_id or model.config.eos_token_id or 0
    ids = torch.tensor([[start, *tokens.ids.tolist()]])
    longest = largest_input(model.config)
    if longest is not None and ids.shape[1] > longest:
        sys.exit(f"{name} reads {longest} tokens, and the text has {ids.shape[1]}: cut it")
    with torch.inference_mode():
        log_p = model(ids).logits[0, :-1].float().log_softmax(-1)
    return tokens.spans, -log_p.gather(1, ids[0, 1:, None])[:, 0].numpy()


if len(sys.argv) != 4:
    sys.exit(__doc__)
text = Path(sys.argv[3]).read_text("utf-8")
(spans, nll), (other_spans, other_nll) = (losses(name, text) for name in sys.argv[1:3])
groups = vocagno.groups(spans, other_spans)
a = vocagno.reduce(nll, groups.student, how="sum")
b = vocagno.reduce(other_nll, groups.teacher, how="sum")
both = np.log(2) - np.logaddexp(-a, -b)

size = len(text.encode())
for name, nats in ((sys.argv[1], a), (sys.argv[2], b), ("both together", both)):
    print(f"{nats.sum() / np.log(2) / size:.3f} bits a byte: {name}")
starts = spans[groups.student[:, 0], 0]
stops = spans[groups.student[:, 1] - 1, 1]
for group in np.argsort(a - b)[[0, -1]]:
    piece = text.encode()[starts[group] : stops[group]].decode(errors="replace")
    print(f"{piece!r}: {a[group]:.2f} and {b[group]:.2f} nats")

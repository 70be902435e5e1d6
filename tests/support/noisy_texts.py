"""Texts with lines that are noise to a teacher, and its scores: it loses 6 nats a byte on lines
that begin with `#`, and half a nat on all others."""

import numpy as np

from families import TEXTS
from score_stores import write_store
from vocagno import TokenSpans
from vocagno.teacher.score_store import DocumentScores

JUNK = "# zq xv wk 77 ]] buy\n"
NOISY = [f"{n}: {text.strip()}\n{JUNK}é {n} ≠ {text}" for n, text in enumerate(TEXTS[:9])]
NOISY += [f"9: {TEXTS[0]}\n", JUNK + "# of junk alone, in two lines", ""]


def without_noise(text):
    """What a filter leaves of a text."""
    return "".join(line for line in text.splitlines(keepends=True) if line[0] != "#")


def write_line_losses(folder, tokenizer, texts, per_shard=5, on_junk=6.0):
    """A store with these losses; the first token of a document has none."""
    tokens, documents = TokenSpans(tokenizer).encode(texts), []
    for index, text in enumerate(texts):
        of_tokens = tokens.spans[tokens.text(index)]
        rates = []  # of each byte
        for line in text.encode().splitlines(keepends=True):
            rates += [on_junk if line[:1] == b"#" else 0.5] * len(line)
        nll = np.array([rates[start] * (stop - start) for start, stop in of_tokens], np.float16)
        nll[:1] = np.nan
        documents.append(DocumentScores(of_tokens, nll))
    return write_store(folder, texts, documents, {"teacher": "planted"}, per_shard)

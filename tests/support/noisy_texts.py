"""Texts with lines that are noise to a teacher, and its scores: it loses 6 nats a byte on lines
that begin with `#`, and half a nat on all others."""

import numpy as np

from families import TEXTS
from vocagno import TokenSpans
from vocagno.data.corpus import text_hash
from vocagno.data.store.building import finish_store
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore, write_scores

JUNK = "# zq xv wk 77 ]] buy\n"
NOISY = [f"{n}: {text.strip()}\n{JUNK}é {n} ≠ {text}" for n, text in enumerate(TEXTS[:9])]
NOISY += [f"9: {TEXTS[0]}\n", JUNK + "# of junk alone, in two lines", ""]


def without_noise(text):
    """What a filter leaves of a text."""
    return "".join(line for line in text.splitlines(keepends=True) if line[0] != "#")


def write_line_losses(folder, tokenizer, texts, per_shard=5, on_junk=6.0):
    """A store with these losses; the first token of a document has none."""
    spans, names = TokenSpans(tokenizer), []
    for first in range(0, len(texts), per_shard):
        part = texts[first : first + per_shard]
        tokens, documents = spans.encode(part), []
        for index, text in enumerate(part):
            of_tokens = tokens.spans[tokens.text(index)]
            rates = []  # of each byte
            for line in text.encode().splitlines(keepends=True):
                rates += [on_junk if line[:1] == b"#" else 0.5] * len(line)
            nll = np.array([rates[start] * (stop - start) for start, stop in of_tokens], np.float16)
            nll[:1] = np.nan
            documents.append(DocumentScores(of_tokens, nll))
        names.append(f"shard-{first:05d}")
        hashes = [text_hash(text) for text in part]
        write_scores(folder / f"{names[-1]}.arrow", hashes, documents, {"teacher": "planted"})
    finish_store(folder, names, SCORES)
    return ScoreStore(folder)

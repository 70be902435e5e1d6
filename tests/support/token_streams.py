"""Token files of other trainers, and scores for the texts in them."""

import struct

import numpy as np

from score_stores import write_store
from vocagno import TokenSpans
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores

MEGATRON_CODES = {"u1": 1, "i4": 4, "i8": 5, "f8": 6, "u2": 8}


def write_megatron(prefix, documents, dtype="u2", sequences=1, modes=False):
    """A pair of .bin and .idx; each document is cut into so many sequences."""
    parts = [part for ids in documents for part in np.array_split(np.asarray(ids), sequences)]
    lengths = [len(part) for part in parts]
    size = np.dtype(dtype).itemsize
    starts = [sum(lengths[:number]) * size for number in range(len(lengths))]
    prefix.with_name(f"{prefix.name}.bin").write_bytes(
        b"".join(part.astype(f"<{dtype}").tobytes() for part in parts)
    )
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, MEGATRON_CODES[dtype], len(parts), len(documents) + 1)
        + struct.pack(f"<{len(parts)}i", *lengths)
        + struct.pack(f"<{len(parts)}q", *starts)
        + struct.pack(f"<{len(documents) + 1}q", *range(0, len(parts) + 1, sequences))
        + bytes(len(parts) if modes else 0)
    )
    return prefix


def write_datatrove(path, documents, dtype="u2"):
    """A .ds and its index."""
    path.write_bytes(b"".join(np.asarray(ids).astype(f"<{dtype}").tobytes() for ids in documents))
    ends = np.cumsum([len(ids) for ids in documents])
    path.with_name(f"{path.name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    return path


def write_numpy(path, documents, dtype="u2"):
    """A .npy with the ids of all documents."""
    np.save(path, np.concatenate(documents).astype(dtype))
    return path


def documents_of(tokenizer, texts):
    """The ids of each text, between BOS and EOS of the llama-like tokenizer."""
    spans = TokenSpans(tokenizer)
    tokens = spans.encode(texts)
    bos, eos = spans.token_id("<s>"), spans.token_id("</s>")
    return [np.array([bos, *tokens.ids[tokens.text(i)], eos]) for i in range(len(texts))]


def write_losses(folder, tokenizer, texts, seed=0, unscored=0.0, per_shard=7, candidates=0):
    """A store of drawn losses for the tokens of a teacher, and of candidates; the first of a
    document has no loss."""
    spans, draw = TokenSpans(tokenizer), np.random.default_rng(seed)
    made_from = {"teacher": "drawn"}
    if candidates:
        made_from |= {"tokenizer": spans.fingerprint, "candidates": candidates}
    tokens, documents = spans.encode(texts), []
    for index in range(len(texts)):
        place = tokens.text(index)
        nll = draw.gamma(0.5, 12, place.stop - place.start).astype(np.float16)
        nll[draw.random(len(nll)) < unscored] = np.nan
        nll[:1] = np.nan
        drawn = None
        if candidates:
            ids = tokens.ids[place]
            orders = draw.permuted(np.tile(np.arange(spans.vocabulary_size), (len(ids), 1)), axis=1)
            log_p = np.log(draw.dirichlet(np.ones(candidates + 1), len(ids)))[:, :-1]
            drawn = Candidates.of(ids, orders[:, :candidates], log_p, spans.vocabulary_size)
        documents.append(DocumentScores(tokens.spans[place], nll, candidates=drawn))
    return write_store(folder, texts, documents, made_from, per_shard)

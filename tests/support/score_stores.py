"""Stores of scores."""

from vocagno.data.corpus import text_hash
from vocagno.data.store.building import finish_store
from vocagno.teacher.score_store import SCORES, ScoreStore, write_scores


def write_store(folder, texts, documents, made_from, per_shard):
    """A store with these scores of the texts, so many of them in a shard."""
    names = []
    for first in range(0, len(texts), per_shard):
        part = slice(first, first + per_shard)
        names.append(f"shard-{first:05d}")
        hashes = [text_hash(text) for text in texts[part]]
        write_scores(folder / f"{names[-1]}.arrow", hashes, documents[part], made_from)
    finish_store(folder, names, SCORES)
    return ScoreStore(folder)

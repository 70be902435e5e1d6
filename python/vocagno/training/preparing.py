"""The student's side of a corpus: tokenized once, packed into fixed rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vocagno.corpus import Corpus, CorpusShard
from vocagno.rows import KIND, UNIT, VERSION, cut_rows, join_documents, write_rows
from vocagno.training.loading import StudentTokenizer
from vocagno.training.stores import StoreKind, make_store

ROWS = StoreKind(KIND, VERSION, UNIT, "preparing")


def rows_made_from(tokenizer: StudentTokenizer, seq_len: int) -> dict[str, Any]:
    """What decides the rows of a text, apart from the text."""
    return {
        "format": f"{KIND} {VERSION}",
        "tokenizer": tokenizer.spans.fingerprint,
        "prefix": list(tokenizer.spans.prefix_ids),
        "eos": tokenizer.eos_id,
        "seq_len": seq_len,
    }


def prepare_corpus(
    corpus: Corpus,
    folder: Path,
    tokenizer: StudentTokenizer,
    seq_len: int,
    *,
    show_progress: bool,
) -> None:
    """Packs a corpus into a store of rows; processes share the shards."""
    prefix_ids, eos_id = tokenizer.spans.prefix_ids, tokenizer.eos_id

    def make(
        shard: CorpusShard,
        path: Path,
        metadata: dict[str, Any],
        advance: Callable[[float], None],
    ) -> None:
        tokens = tokenizer.spans.encode(corpus.texts(shard))
        stream = join_documents(tokens, shard.first_document, prefix_ids, eos_id)
        rows = cut_rows(stream, seq_len)
        write_rows(path, rows, seq_len, tokenizer.spans.vocabulary_size, metadata)

    made_from = rows_made_from(tokenizer, seq_len)
    make_store(corpus, folder, ROWS, made_from, make, show_progress=show_progress)

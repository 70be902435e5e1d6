"""The student's side of a corpus: tokenized once, packed into fixed rows."""

from pathlib import Path
from typing import Any

from vocagno.corpus import Corpus, CorpusShard
from vocagno.rows import KIND, VERSION, cut_rows, join_documents, write_rows
from vocagno.training.loading import StudentTokenizer
from vocagno.training.making import Advance, Made, StoreKind, make_store

ROWS = StoreKind(KIND, VERSION, "preparing")


def rows_made_from(corpus: Corpus, tokenizer: StudentTokenizer, seq_len: int) -> dict[str, Any]:
    """What decides the rows of a text, apart from the text."""
    return {
        "format": f"{KIND} {VERSION}",
        "tokenizer": tokenizer.spans.fingerprint,
        "prefix": list(tokenizer.spans.prefix_ids),
        "eos": tokenizer.eos_id,
        "seq_len": seq_len,
        "prompts": corpus.prompt_fingerprint,
    }


def prepare_corpus(
    corpus: Corpus,
    folder: Path,
    tokenizer: StudentTokenizer,
    seq_len: int,
    *,
    show_progress: bool,
) -> Made:
    """Packs a corpus into a store of rows; processes share the shards."""
    prefix_ids, eos_id = tokenizer.spans.prefix_ids, tokenizer.eos_id
    made_from = rows_made_from(corpus, tokenizer, seq_len)

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        found = corpus.read(shard)
        tokens = tokenizer.spans.encode(found.texts)
        stream = join_documents(
            tokens, shard.first_document, prefix_ids, eos_id, found.prompt_bytes
        )
        rows = cut_rows(stream, seq_len)
        write_rows(
            path, rows, seq_len, tokenizer.spans.vocabulary_size,
            found.hashes, shard.first_document, made_from,
        )  # fmt: skip

    return make_store(corpus, folder, ROWS, made_from, make, show_progress=show_progress)

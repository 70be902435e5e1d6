"""Prepares a corpus: tokenizes it once for the student, packs the tokens into rows of one length,
and, for a live teacher, copies the texts to a store from which any part of a text can be read."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.data.corpus import Corpus, CorpusShard, ShardTexts, scan, text_hash, texts_hash
from vocagno.data.rows import ROWS, RowStore, cut_rows, join_documents, write_rows
from vocagno.data.store.building import Advance, MakeResult, make_store, store_key
from vocagno.data.store.format import MANIFEST, MAX_REFUSED, RowShard, ShardedStore, StoreKind
from vocagno.data.store.shards import (
    Description,
    Frame,
    Lists,
    StoreError,
    list_column,
    write_shard,
)
from vocagno.data.store.state import first_difference
from vocagno.system.addresses import path_of
from vocagno.system.progress import Progress
from vocagno.system.signals import Terminated, terminable
from vocagno.tokens.student_tokenizer import StudentTokenizer, student_tokenizer


def scan_with_progress(
    corpus: str | Path,
    cache: Path,
    *,
    show_progress: bool,
    shard_bytes: int | None = None,
    max_refused: float = MAX_REFUSED,
) -> Corpus:
    """Scans a corpus, unless the cache has it, and shows a progress bar. `scan` says what the
    arguments are."""
    with Progress("reading", None, unit="B", show=show_progress) as progress:
        return scan(corpus, cache, progress.at, shard_bytes, max_refused)


def rows_made_from(tokenizer: StudentTokenizer, seq_len: int, prompts: str = "") -> dict[str, Any]:
    """Returns the inputs, apart from the text, that determine the rows. The store records them, so
    that rows made with other ones are refused.
    Args: prompts: `Corpus.prompt_fingerprint`."""
    return {
        "format": f"{ROWS.kind} {ROWS.version}",
        "tokenizer": tokenizer.spans.fingerprint,
        "prefix": list(tokenizer.spans.prefix_ids),
        "eos": tokenizer.eos_id,
        "seq_len": seq_len,
        "prompts": prompts,
    }


def prepare_rows(
    corpus: Corpus,
    tokenizer: StudentTokenizer,
    seq_len: int,
    cache: Path,
    *,
    show_progress: bool,
    workers: int = 1,
    folder: Path | None = None,
) -> tuple[RowStore, MakeResult]:
    """Opens the rows of a corpus in the cache (or `folder`), and packs them first if missing.
    Args: workers: number of processes that share the shards; it does not change the rows."""
    made_from = rows_made_from(tokenizer, seq_len, corpus.prompt_fingerprint)
    folder = path_of(folder or cache / "rows" / store_key(corpus, made_from))
    helpers = 0 if (folder / MANIFEST).is_file() else min(workers, len(corpus.shards)) - 1
    corpus_arguments = corpus.name, corpus.max_refused, corpus.shard_bytes, cache
    rows_arguments = tokenizer.source, tokenizer.eos, seq_len, folder

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        texts = corpus.read_shard(shard)
        pack_shard(path, texts, shard.first_document, tokenizer, seq_len, made_from)

    with _start_helpers(helpers, *corpus_arguments, *rows_arguments):
        made = make_store(corpus, folder, ROWS, made_from, make, show_progress=show_progress)
    return RowStore(folder), made


def pack_shard(
    path: Path,
    documents: ShardTexts,
    first_document: int,
    tokenizer: StudentTokenizer,
    seq_len: int,
    made_from: dict[str, Any],
) -> None:
    """Tokenizes documents, and writes their rows as one shard. A document whose tokens cannot be
    placed in its text has no row; the shard's description names it.

    Args:
        first_document: number of the first document in the corpus.
        made_from: `rows_made_from`.
    """
    spans = tokenizer.spans
    tokens, reasons = spans.try_encode(documents.texts)
    stream = join_documents(
        tokens,
        first_document,
        spans.prefix_ids,
        tokenizer.eos_id,
        documents.prompt_bytes,
        skipped=reasons,
    )
    write_rows(
        path,
        cut_rows(stream, seq_len),
        seq_len,
        spans.vocabulary_size,
        documents.hashes,
        first_document,
        made_from,
        refused=documents.refusals(reasons),
    )


def open_rows(folder: Path, tokenizer: StudentTokenizer, seq_len: int) -> RowStore:
    """Opens rows that were made beforehand, by `vocagno prepare --out` or `RowPacker`.
    Raises: StoreError if they were made with another tokenizer or length."""
    rows = RowStore(folder)
    made_from = rows.manifest.made_from
    # The prompts follow from the text, which is not read again here.
    expected = rows_made_from(tokenizer, seq_len, made_from.get("prompts", ""))
    inputs = {name: made_from.get(name) for name in expected}
    if inputs != expected:
        raise StoreError(
            f"{folder}: these rows were made with another {first_difference(inputs, expected)}; "
            "make them again with the tokenizer and the data.seq_len of this run"
        )
    return rows


def write_texts(
    path: Path, texts: list[str], hashes: list[bytes], made_from: dict[str, Any]
) -> None:
    """Writes one shard of texts atomically; `hashes` are their `corpus.text_hash`es."""
    flat = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    columns = {
        "text_hash": pa.array(hashes, pa.binary(16)),
        "text": list_column(flat, pa.uint8(), large=True),
    }
    counts = {"documents": len(texts), "tokens": 0, "bytes": sum(map(len, flat))}
    description = Description(TEXTS.kind, TEXTS.version, made_from, texts_hash(hashes), counts)
    write_shard(path, columns, description)


class TextStore(ShardedStore["TextShard"]):
    """All texts of a corpus. Reading any part of a text costs O(length of the part).

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TEXTS)

    def piece(self, document: int, first_byte: int, end_byte: int) -> tuple[str, int]:
        """Reads bytes `[first_byte, end_byte)` of a document, widened to whole characters.

        Returns: the text, and the byte of the document at which it begins.
        Raises: StoreError if the document is damaged.
        """
        shard, row = self.locate(document)
        if not shard.is_whole_once_read(row):
            raise StoreError(
                f"{shard.path}: document {row} of this shard is damaged (its hash differs); "
                f"delete the folder {self.folder} and run again"
            )
        return whole_characters(shard.texts[row], first_byte, end_byte)


class TextShard(RowShard):
    """A shard of texts. Its columns are looked up once, when it is opened."""

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        super().__init__(path, frame)
        self.text_hashes: NDArray[Any] = self.values("text_hash")
        self.texts: Lists = self.lists("text")

    def is_whole(self, row: int) -> bool:
        if not self.texts.is_sound(row):
            return False
        try:
            text = self.texts[row].tobytes().decode()
        except UnicodeDecodeError:
            return False
        return bool(text_hash(text) == self.text_hashes[row].tobytes())

    def is_consistent(self) -> bool:
        """Tells whether the description's counts and hash match the content of the shard."""
        text_hash = texts_hash(bytes(text) for text in self.text_hashes.tolist())
        counts = {"documents": len(self), "tokens": 0, "bytes": len(self.texts.values)}
        return (counts, text_hash) == (self.description.counts, self.description.text_hash)


TEXTS = StoreKind("texts", 1, "documents", TextShard, "copying texts", "train")


def whole_characters(
    text: bytes | NDArray[np.uint8], first_byte: int, end_byte: int
) -> tuple[str, int]:
    """Cuts bytes `[first_byte, end_byte)` out of a text in UTF-8, widened to whole characters.
    Returns: the part, and the byte of the text at which it begins."""
    first, end = at_character(text, first_byte, -1), at_character(text, end_byte, 1)
    return bytes(text[first:end]).decode(), first


def at_character(text: bytes | NDArray[np.uint8], position: int, step: int) -> int:
    """Returns the nearest position at which a UTF-8 character begins, at `position` or after it
    (step 1) or before it (step -1)."""
    while 0 < position < len(text) and text[position] & 0xC0 == 0x80:  # a continuation byte
        position += step
    return position


def prepare_texts(corpus: Corpus, cache: Path, *, show_progress: bool) -> TextStore:
    """Opens the text store of a corpus in the cache, and writes it first if missing."""
    made_from = {"format": f"{TEXTS.kind} {TEXTS.version}"}
    folder = cache / "texts" / store_key(corpus, made_from)

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        documents = corpus.read_shard(shard)
        write_texts(path, documents.texts, documents.hashes, made_from)

    make_store(corpus, folder, TEXTS, made_from, make, show_progress=show_progress)
    return TextStore(folder)


@contextmanager
def _start_helpers(count: int, *arguments: Any) -> Iterator[None]:
    """Starts processes that do the same work next to this one, and ends them. If one fails, the
    others do its share."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the tokenizers' threads
    helpers = [context.Process(target=_help, args=arguments, daemon=True) for _ in range(count)]
    for helper in helpers:
        helper.start()
    try:
        yield
    finally:
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            helper.join()


def _help(
    corpus: str,
    max_refused: float,
    shard_bytes: int,
    cache: Path,
    source: str,
    eos: str,
    seq_len: int,
    folder: Path,
) -> None:
    """Prepares rows in a helper, which exits when the process that started it ends, for any
    reason: a killed command leaves no process behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it handles Ctrl-C
    try:
        with terminable():
            tokenizer = student_tokenizer(source, eos)
            shards = scan(corpus, cache, shard_bytes=shard_bytes, max_refused=max_refused)
            prepare_rows(shards, tokenizer, seq_len, cache, show_progress=False, folder=folder)
    except Terminated:
        pass
    except Exception as error:  # the others continue; they report it if they meet it, too
        print(f"a helper stopped: {type(error).__name__}: {error}", file=sys.stderr)

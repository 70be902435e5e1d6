"""The documents of a corpus as memory-mapped bytes, for fast access to any part of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.data.corpus import text_hash, texts_hash
from vocagno.data.store.format import RowShard, ShardedStore, StoreKind
from vocagno.data.store.shards import (
    Description,
    Frame,
    Lists,
    StoreError,
    list_column,
    write_shard,
)


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
    given = TEXTS.kind, TEXTS.version, made_from, texts_hash(iter(hashes)), counts
    write_shard(path, columns, Description(*given))


class TextStore(ShardedStore["TextShard"]):
    """All texts of a corpus. Reading any part of a text costs O(length of the part).

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TEXTS)

    def piece(self, document: int, first_byte: int, end_byte: int) -> tuple[str, int]:
        """Bytes `[first_byte, end_byte)` of a document, widened to whole characters, and the byte
        at which that text begins."""
        shard, row = self.locate(document)
        if not shard.is_whole_once_read(row):
            raise StoreError(
                f"{shard.path}: document {row} of this shard is damaged (its hash differs); "
                f"delete the folder {self.folder} and run again"
            )
        text = shard.texts[row]
        first, end = _at_character(text, first_byte, -1), _at_character(text, end_byte, 1)
        return text[first:end].tobytes().decode(), first


class TextShard(RowShard):
    """A shard whose columns are looked up once."""

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        super().__init__(path, frame)
        self.text_hashes: NDArray[Any] = self.values("text_hash")
        self.texts: Lists = self.lists("text")

    def is_whole(self, row: int) -> bool:
        """Whether a document matches its hash."""
        if not self.texts.is_sound(row):
            return False
        try:
            text = self.texts[row].tobytes().decode()
        except UnicodeDecodeError:
            return False
        return bool(text_hash(text) == self.text_hashes[row].tobytes())

    def is_consistent(self) -> bool:
        """Whether the description's counts and hash match the content of the shard."""
        named = texts_hash(bytes(text) for text in self.text_hashes.tolist())
        counts = {"documents": len(self), "tokens": 0, "bytes": len(self.texts.values)}
        return (counts, named) == (self.description.counts, self.description.text_hash)


TEXTS = StoreKind("texts", 1, "documents", TextShard, "copying texts", "prepare")


def _at_character(text: NDArray[np.uint8], place: int, step: int) -> int:
    """The nearest place at or after (or before) `place` at which a UTF-8 character begins."""
    while 0 < place < len(text) and text[place] & 0xC0 == 0x80:
        place += step
    return place

"""Scans a corpus once and cuts it into shards of a few megabytes, whose texts stay on disk.

A shard is named by the hash of its texts, so that a store of scores or rows can be checked against
the text that it is made from.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vocagno.data.corpus_files import CorpusError
from vocagno.data.sources import Place, Source, open_sources
from vocagno.data.store.format import MAX_REFUSED
from vocagno.data.store.shards import Refused
from vocagno.system.files import digest, write_json
from vocagno.system.shared_work import share

SHARD_BYTES = 2_000_000
"""Most bytes of text of a shard by default. A shard is the unit of work that processes share and
that a killed run repeats, so a small corpus has `_SHARDS` smaller ones."""
_SHARDS = 16
"""Number of shards of a small corpus, so that a few processes have work."""
_LEAST_SHARD_BYTES = 20_000
"""Smallest size of a shard by default."""

_INDEX_VERSION = 3
"""Version of the cuts in the cache; another one makes processes scan again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive records of one source, and the hashes of their documents."""

    record: int
    """Number of records before the cut (`Place.record`)."""
    offset: int
    """Number of bytes before the cut (`Place.offset`)."""
    num_records: int
    documents: int
    text_bytes: int
    text_hash: str
    """Identifies the texts of its documents, in order; independent of the file and other fields."""
    prompt_hash: str
    """Identifies the prompt length of each document; "" if there is no prompt."""


@dataclass(frozen=True, slots=True)
class CorpusShard(Cut):
    """A cut of a source with its position in the corpus."""

    source: int
    """Index of the source in `Corpus.sources`."""
    first_document: int
    """Number of documents in the shards before it."""


@dataclass(frozen=True, slots=True)
class ShardTexts:
    """The documents of a shard."""

    texts: list[str]
    hashes: list[bytes]
    """`text_hash` of each document."""
    prompt_bytes: list[int]
    """UTF-8 bytes of the prompt at the start of each document."""
    places: list[str]
    """File and line of each document, in words."""
    records: Sequence[dict[str, Any] | None] = ()
    """All fields of each line of JSON, for those who write it again (`Document.record`)."""

    def refusals(self, reasons: Mapping[int, str]) -> list[Refused]:
        """Names the documents that are omitted, from the reasons by their number in the shard."""
        return [Refused(row, self.places[row], reason) for row, reason in reasons.items()]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The shards of a corpus, whose texts are on disk."""

    name: str
    sources: list[Source]
    shards: list[CorpusShard]
    max_refused: float = MAX_REFUSED
    """Share of its documents that a store of it may omit (`data.max_refused`)."""
    shard_bytes: int = SHARD_BYTES
    """Bytes of text at which its shards were cut."""

    @property
    def fingerprint(self) -> str:
        """Identifies the texts, in order."""
        return digest(*(shard.text_hash for shard in self.shards))

    @property
    def prompt_fingerprint(self) -> str:
        """Identifies the prompt length of each document; "" if there is no prompt."""
        prompts = [shard.prompt_hash for shard in self.shards]
        return digest(*prompts) if any(prompts) else ""

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def text_bytes(self) -> int:
        return sum(shard.text_bytes for shard in self.shards)

    def read_shard(self, shard: CorpusShard) -> ShardTexts:
        """Reads the documents of one shard.
        Raises: CorpusError if they have changed since the corpus was scanned."""
        source = self.sources[shard.source]
        numbers = range(shard.record, shard.record + shard.num_records)
        # `zip` asks its first argument first: so no record is read after the last one.
        records = zip(numbers, source.read_from(Place(shard.record, shard.offset)), strict=False)
        documents = [
            (number, document) for number, (_, document) in records if document is not None
        ]
        places = [source.place(number) for number, _ in documents]
        texts = [document.text for _, document in documents]
        prompts = [document.prompt_bytes for _, document in documents]
        hashes = [text_hash(text) for text in texts]
        if (texts_hash(hashes), _prompt_hash(prompts)) != (shard.text_hash, shard.prompt_hash):
            raise CorpusError(
                f"{source.name}: has changed since it was read; run again (if its size and time "
                "are unchanged, delete `corpora` in the cache first)"
            )
        lines = [document.record for _, document in documents]
        return ShardTexts(texts, hashes, prompts, places, lines)


def text_hash(text: str) -> bytes:
    """Hashes the UTF-8 bytes of a document to 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def texts_hash(hashes: Iterable[bytes]) -> str:
    """Hashes a sequence of documents, given the hash of each."""
    return hashlib.blake2b(b"".join(hashes), digest_size=16).hexdigest()


def scan(
    corpus: str | Path,
    cache: Path | None = None,
    advance: Callable[[int], None] = lambda text_bytes: None,
    shard_bytes: int | None = None,
    max_refused: float = MAX_REFUSED,
) -> Corpus:
    """Reads a corpus once: checks, counts and hashes every document, and cuts it into shards.

    The result for each source is stored in `cache`, if given, and reused until the source changes
    (a file: its size or time). Processes that scan at the same time share the sources.

    Args:
        corpus: a file, a folder, an address or `datasets:NAME` (`open_sources`).
        advance: called from time to time with the bytes of text that this process has read.
        shard_bytes: bytes of text of a shard, or a little more; default: a sixteenth of the text,
            at least 20,000 and at most `SHARD_BYTES`. It follows from the text only.
        max_refused: share of the documents that a store may omit (`Corpus.max_refused`).
    Raises: CorpusError for a missing or empty corpus or a record that is not a document.
    """
    sources, size = open_sources(corpus), shard_bytes or SHARD_BYTES
    bytes_read = 0

    def cut_source(source: Source) -> Iterator[Cut]:
        nonlocal bytes_read
        for cut in _cuts(source, size):
            bytes_read += cut.text_bytes
            advance(bytes_read)
            yield cut

    def cut_all() -> list[list[Cut]]:
        if cache is None:
            return [list(cut_source(source)) for source in sources]
        return _cached_cuts(sources, size, cache / "corpora", cut_source)

    cuts_by_source = cut_all()
    if shard_bytes is None:
        text_bytes = sum(cut.text_bytes for cuts in cuts_by_source for cut in cuts)
        smaller = max(_LEAST_SHARD_BYTES, text_bytes // _SHARDS)
        # The size of a small corpus is known only now; it is small enough to be read again.
        if smaller < min(size, text_bytes):
            size = smaller
            cuts_by_source = cut_all()
    shards = list(_number_shards(cuts_by_source))
    if not any(shard.text_bytes for shard in shards):
        raise _empty(corpus)
    return Corpus(str(corpus), sources, shards, max_refused, size)


def _cached_cuts(
    sources: list[Source], size: int, folder: Path, cut_source: Callable[[Source], Iterator[Cut]]
) -> list[list[Cut]]:
    """Reads the cuts of each source from its file in the cache, which is made first if missing."""
    keys = [digest(json.dumps([_INDEX_VERSION, size, s.identity()])) for s in sources]
    by_key = dict(zip(keys, sources, strict=True))
    cuts_by_key: dict[str, list[Cut]] = {}

    def make(key: str) -> None:
        cuts = [asdict(cut) for cut in cut_source(by_key[key])]
        write_json(folder / f"{key}.json", {"cuts": cuts, "check": digest(json.dumps(cuts))})

    def read_cuts(key: str) -> bool:
        """Stores the cuts of a file in `cuts_by_key`; True if it exists and is undamaged."""
        try:
            index = json.loads((folder / f"{key}.json").read_bytes())
            if index["check"] == digest(json.dumps(index["cuts"])):
                cuts_by_key[key] = [Cut(**cut) for cut in index["cuts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return key in cuts_by_key

    share(list(by_key), folder, done=read_cuts, make=make, report=read_cuts)
    return [cuts_by_key[key] for key in keys]


def _number_shards(cuts_by_source: list[list[Cut]]) -> Iterator[CorpusShard]:
    """Numbers the documents of all cuts through; cuts without documents are no shards."""
    first_document = 0
    for source, cuts in enumerate(cuts_by_source):
        for cut in cuts:
            if cut.documents:
                yield CorpusShard(**asdict(cut), source=source, first_document=first_document)
                first_document += cut.documents


def _cuts(source: Source, size: int) -> Iterator[Cut]:
    """Cuts a source into runs of records with `size` bytes of text, or a little more."""
    before = after = Place()
    text_bytes = 0
    hashes: list[bytes] = []
    prompts: list[int] = []

    def make_cut() -> Cut:
        return Cut(
            *before,
            after.record - before.record,
            len(hashes),
            text_bytes,
            texts_hash(hashes),
            _prompt_hash(prompts),
        )

    for after, document in source.read_from(Place()):
        if document is not None:
            hashes.append(text_hash(document.text))
            prompts.append(document.prompt_bytes)
            text_bytes += len(document.text.encode())
        if text_bytes >= size:
            yield make_cut()
            before, text_bytes, hashes, prompts = after, 0, [], []
    if after != before:
        yield make_cut()


def _prompt_hash(prompt_bytes: list[int]) -> str:
    """Hashes the prompt length of each document; "" if there is no prompt."""
    return digest(json.dumps(prompt_bytes)) if any(prompt_bytes) else ""


def read_batches(corpus: str | Path, batch_bytes: int = SHARD_BYTES) -> Iterator[list[str]]:
    """Yields the documents of a corpus in order, as lists of at least `batch_bytes` of text; they
    are not hashed.
    Raises: CorpusError for an empty corpus, or on reaching a record that is not a document."""
    texts: list[str] = []
    size, is_empty = 0, True
    for source in open_sources(corpus):
        for _, document in source.read_from(Place()):
            if document is None:
                continue
            is_empty &= not document.text
            texts.append(document.text)
            size += len(document.text.encode())
            if size >= batch_bytes:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts
    if is_empty:
        raise _empty(corpus)


def _empty(corpus: str | Path) -> CorpusError:
    """Makes the error for a corpus without any text."""
    return CorpusError(
        f"{corpus}: the corpus is empty; expected text, such as lines of " + '{"text": "..."}'
    )

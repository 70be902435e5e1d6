"""A corpus: documents in order, cut into shards of a few megabytes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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
_LEAST_SHARD_BYTES = 20_000
"""Bytes of a shard that a corpus is not cut below by default."""

_INDEX_VERSION = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """Some consecutive records of one source."""

    record: int
    offset: int
    """The `Place` before it."""
    num_records: int
    documents: int
    text_bytes: int
    text_hash: str
    """Identifies the texts of its documents, in order; independent of the file and other fields."""
    prompt_hash: str
    """Identifies the prompt length of each document; "" if there is no prompt."""


@dataclass(frozen=True, slots=True)
class CorpusShard(Cut):
    """A cut of a source with its place in the corpus."""

    source: int
    """Index of the source."""
    first_document: int


@dataclass(frozen=True, slots=True)
class ShardTexts:
    """The documents of a shard."""

    texts: list[str]
    hashes: list[bytes]
    """`text_hash` of each."""
    prompt_bytes: list[int]
    places: list[str]
    """File and line of each."""

    def refused(self, why: Mapping[int, str]) -> list[Refused]:
        """The documents that are omitted. Args: why: the reasons, by their number."""
        return [Refused(row, self.places[row], reason) for row, reason in why.items()]


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

    def read(self, shard: CorpusShard) -> ShardTexts:
        """Reads the documents of one shard.
        Raises: CorpusError if they have changed since the corpus was scanned."""
        source = self.sources[shard.source]
        numbers = range(shard.record, shard.record + shard.num_records)
        # In this order, the source is not asked for a record after the last one.
        records = zip(numbers, source.read(Place(shard.record, shard.offset)), strict=False)
        found = [(number, one) for number, (_, one) in records if one is not None]
        places = [source.place(number) for number, _ in found]
        texts = [document.text for _, document in found]
        prompts = [document.prompt_bytes for _, document in found]
        hashes = [text_hash(text) for text in texts]
        if (texts_hash(hashes), _prompt_hash(prompts)) != (shard.text_hash, shard.prompt_hash):
            raise CorpusError(
                f"{source.name}: has changed since it was read; run again (if its size and time "
                "are unchanged, delete `corpora` in the cache first)"
            )
        return ShardTexts(texts, hashes, prompts, places)


def text_hash(text: str) -> bytes:
    """16-byte hash of a document's UTF-8 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def texts_hash(hashes: Iterable[bytes]) -> str:
    """Hash of a sequence of documents, from their hashes."""
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
        corpus: as for `open_sources`.
        advance: called from time to time with the bytes of text that this process has read.
        shard_bytes: bytes of text of a shard, or a little more; default: a sixteenth of the text,
            at least 20,000 and at most `SHARD_BYTES`. It follows from the text only.
        max_refused: as `Corpus`.
    Raises: CorpusError for a missing or empty corpus or a record that is not a document.
    """
    sources, size = open_sources(corpus), shard_bytes or SHARD_BYTES
    read = 0

    def cuts_of(source: Source) -> Iterator[Cut]:
        nonlocal read
        for cut in _cuts(source, size):
            read += cut.text_bytes
            advance(read)
            yield cut

    def cut() -> list[list[Cut]]:
        if cache is None:
            return [list(cuts_of(source)) for source in sources]
        return _kept(sources, size, cache / "corpora", cuts_of)

    found = cut()
    if shard_bytes is None:
        text_bytes = sum(cut.text_bytes for cuts in found for cut in cuts)
        smaller = max(_LEAST_SHARD_BYTES, text_bytes // _SHARDS)
        if smaller < min(size, text_bytes):  # little enough to be read again
            size = smaller
            found = cut()
    shards = list(_numbered(found))
    if not any(shard.text_bytes for shard in shards):
        raise _empty(corpus)
    return Corpus(str(corpus), sources, shards, max_refused, size)


def _kept(
    sources: list[Source], size: int, folder: Path, cuts_of: Callable[[Source], Iterator[Cut]]
) -> list[list[Cut]]:
    """The cuts of each source from its file in the cache, made if missing."""
    keys = [digest(json.dumps([_INDEX_VERSION, size, s.identity()])) for s in sources]
    by_key = dict(zip(keys, sources, strict=True))
    found: dict[str, list[Cut]] = {}

    def make(key: str) -> None:
        cuts = [asdict(cut) for cut in cuts_of(by_key[key])]
        write_json(folder / f"{key}.json", {"cuts": cuts, "check": digest(json.dumps(cuts))})

    def done(key: str) -> bool:
        """Whether an index exists and is undamaged; stores its cuts in `found`."""
        try:
            index = json.loads((folder / f"{key}.json").read_bytes())
            if index["check"] == digest(json.dumps(index["cuts"])):
                found[key] = [Cut(**cut) for cut in index["cuts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return key in found

    share(list(by_key), folder, done=done, make=make, report=done)
    return [found[key] for key in keys]


def _numbered(found: list[list[Cut]]) -> Iterator[CorpusShard]:
    first_document = 0
    for source, cuts in enumerate(found):
        for cut in cuts:
            if cut.documents:
                yield CorpusShard(**asdict(cut), source=source, first_document=first_document)
                first_document += cut.documents


def _cuts(source: Source, size: int) -> Iterator[Cut]:
    """Cuts a source into parts of about `size` bytes of text."""
    before = after = Place()
    text_bytes = 0
    hashes: list[bytes] = []
    prompts: list[int] = []

    def cut() -> Cut:
        return Cut(
            *before,
            after.record - before.record,
            len(hashes),
            text_bytes,
            texts_hash(hashes),
            _prompt_hash(prompts),
        )

    for after, document in source.read(Place()):
        if document is not None:
            hashes.append(text_hash(document.text))
            prompts.append(document.prompt_bytes)
            text_bytes += len(document.text.encode())
        if text_bytes >= size:
            yield cut()
            before, text_bytes, hashes, prompts = after, 0, [], []
    if after != before:
        yield cut()


def _prompt_hash(prompt_bytes: list[int]) -> str:
    return digest(json.dumps(prompt_bytes)) if any(prompt_bytes) else ""


def read_batches(corpus: str | Path, batch_bytes: int = SHARD_BYTES) -> Iterator[list[str]]:
    """The documents of a corpus in order, as lists of at least `batch_bytes` of text; not hashed.
    Raises: as `scan`, on reaching the record."""
    texts: list[str] = []
    size, is_empty = 0, True
    for source in open_sources(corpus):
        for _, document in source.read(Place()):
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
    return CorpusError(
        f"{corpus}: the corpus is empty; expected text, such as lines of " + '{"text": "..."}'
    )

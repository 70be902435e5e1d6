"""Exports scores as Parquet with a dataset card, and imports them to the same bytes.

A Parquet file contains some shards of a store: a row group per shard, a row per document, no text.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import DatasetCard, DatasetCardData

from vocagno.data.store.building import finish_store
from vocagno.data.store.format import REFUSED, Entry, check_names
from vocagno.data.store.shards import Refused, StoreError, decode_spans
from vocagno.system.files import atomic_file, atomic_files, refuse_pointers
from vocagno.system.records import check_type
from vocagno.teacher.score_store import (
    KIND,
    SCORES,
    VERSION,
    DocumentScores,
    ScoreShard,
    ScoreStore,
    num_candidates,
    write_scores,
)

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
EDGES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""The lower ends of the histogram's bins, in nats; the last bin is open."""

_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""All values of float16, each at the place of its bits."""


def losses_of(
    store: ScoreStore, advance: Callable[[int], None] = lambda tokens: None
) -> dict[str, Any]:
    """Statistics of the losses of a store, in nats: mean, deviation, quantiles and a histogram.

    If no token has a loss, there are only the counts. Calls `advance` with the tokens read so far.
    Raises: StoreError for a damaged shard.
    """
    # A loss is one of 65,536 values, so that exact quantiles of any store take half a megabyte.
    counts = np.zeros(1 << 16, np.int64)  # how often each float16 value occurs, by its bits
    read = 0
    for shard in store.shards():
        shard.check(SCORES.row)
        values = shard.nll.values.view(np.uint16)
        counts += np.bincount(values, minlength=1 << 16)
        read += len(values)
        advance(read)
    finite = np.isfinite(_VALUES)
    scored = int(counts[finite].sum())
    totals: dict[str, Any] = {"scored": scored, "without": int(counts[np.isnan(_VALUES)].sum())}
    if not scored:
        return totals
    # By value: in the order of their bits, negative numbers would come last.
    order = np.flatnonzero(finite)[np.argsort(_VALUES[finite], kind="stable")]
    losses, counts = _VALUES[order].astype(np.float64), counts[order]
    mean = float((losses * counts).sum() / scored)
    spread = float(np.sqrt((counts * (losses - mean) ** 2).sum() / scored))
    ends = np.cumsum(counts)
    # The nearest-rank quantile: a value that occurs, not a mean of two.
    ranks = [max(1, int(np.ceil(share * scored))) for share in QUANTILES]
    quantiles = [float(losses[np.searchsorted(ends, rank)]) for rank in ranks]
    below = np.concatenate([[0], ends])[np.searchsorted(losses, EDGES[1:], side="left")]
    bins = np.diff(np.concatenate([[0], below, [scored]]))
    return {
        **totals,
        "mean": round(mean, 4),
        "standard_deviation": round(spread, 4),
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
        "max": float(losses[np.flatnonzero(counts)[-1]]),
        "histogram": dict(zip(map(str, EDGES), bins.tolist(), strict=True)),
    }


SHARDS_PER_FILE = 256
_METADATA_KEY = b"vocagno"
_SCHEMA = pa.schema(
    [
        ("text_hash", pa.string()),  # of the document's UTF-8 bytes, hexadecimal
        ("nll", pa.list_(pa.float32())),  # nats
        ("byte_start", pa.list_(pa.int32())),
        ("byte_end", pa.list_(pa.int32())),
        ("unscored", pa.int32()),
        ("check", pa.uint32()),
    ]
)
_WITH_CANDIDATES = pa.schema(
    [*_SCHEMA, ("candidates", pa.binary()), ("candidate_sizes", pa.list_(pa.int32()))]
)


def _schema(made_from: dict[str, Any]) -> pa.Schema:
    """The columns of an export, which depend on whether the scores have candidates."""
    return _WITH_CANDIDATES if num_candidates(made_from) else _SCHEMA


def export_scores(
    store: ScoreStore, folder: Path, card: str, advance: Callable[[int], None] = lambda shards: None
) -> list[Path]:
    """Writes a store as Parquet files and a dataset card, all of them or none.

    Calls `advance` with the number of shards that are written.

    Raises: StoreError for a folder that is not empty, or a damaged document.
    """
    _check_empty(folder, "export")
    entries = store.manifest.shards
    starts = range(0, len(entries), SHARDS_PER_FILE)
    names = [f"scores-{n:05d}-of-{len(starts):05d}.parquet" for n in range(len(starts))]
    # All files or none: an interrupted export once left a folder that refused the next one.
    with atomic_files(folder) as place:
        for name, start in zip(names, starts, strict=True):
            part = entries[start : start + SHARDS_PER_FILE]
            with atomic_file(place / name) as file, _writer(file, store, part) as writer:
                for index in range(start, start + len(part)):
                    table = _table(store, index)
                    writer.write_table(table, row_group_size=max(1, len(table)))
                    advance(index + 1)
        with atomic_file(place / "README.md") as file:
            file.write(card.encode())
    return [folder / name for name in names]


def _check_empty(folder: Path, purpose: str) -> None:
    """Raises: StoreError for a folder with something in it."""
    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder}: is not empty; name a new folder for the {purpose}")


def _writer(file: Any, store: ScoreStore, entries: list[Entry]) -> pq.ParquetWriter:
    """A writer of a file of some shards, whose metadata describe them for the import."""
    shards = [
        {"name": e.name, "text_hash": e.text_hash, "counts": e.counts, **_omissions(store, e)}
        for e in entries
    ]
    made_from = store.manifest.made_from
    about = {"kind": KIND, "version": VERSION, "made_from": made_from, "shards": shards}
    schema = _schema(made_from).with_metadata({_METADATA_KEY: json.dumps(about, sort_keys=True)})
    # Bytes of equal weight side by side, and differences of positions, are packed better by zstd.
    encodings = {
        "nll.list.element": "BYTE_STREAM_SPLIT",
        "byte_start.list.element": "DELTA_BINARY_PACKED",
        "byte_end.list.element": "DELTA_BINARY_PACKED",
    }
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=False,
        column_encoding=encodings,
        write_page_checksum=True,
    )


def _omissions(store: ScoreStore, entry: Entry) -> dict[str, Any]:
    """The documents that a shard omits, if there are any."""
    if REFUSED not in entry.counts:
        return {}
    return {"refused": entry.open(store.folder, ScoreShard).description.refused}


def _table(store: ScoreStore, index: int) -> pa.Table:
    """The rows of a Parquet file that a shard becomes."""
    shard: ScoreShard = store.shard(index)
    # A damaged document would be exported with its old check, and be refused only on import.
    shard.check("document")
    rows = range(len(shard))
    spans = [decode_spans(shard.coded_spans(row)) for row in rows]
    columns = [
        [bytes(text).hex() for text in shard.text_hashes.tolist()],
        [shard.nll[row].astype(np.float32) for row in rows],
        [span[:, 0] for span in spans],
        [span[:, 1] for span in spans],
        shard.unscored.tolist(),
        shard.checks,
    ]
    schema = _schema(store.manifest.made_from)
    if schema is _WITH_CANDIDATES:
        data, sizes = zip(*map(shard.frames, rows), strict=True) if rows else ((), ())
        columns += [[of_document.tobytes() for of_document in data], sizes]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def import_scores(
    folder: Path, store: Path, advance: Callable[[int], None] = lambda shards: None
) -> ScoreStore:
    """Makes a store from exported Parquet files, with the same bytes as the exported store.

    Either the whole store is made or nothing.

    Raises: StoreError for files that are missing, damaged, of several stores, or not an export.
    """
    _check_empty(store, "import")
    with atomic_files(store) as place:
        _import_into(place, folder, advance)
    return ScoreStore(store)


class _Shard(TypedDict):
    """The description of a shard in an exported file."""

    name: str
    text_hash: str
    counts: dict[str, int]
    refused: list[tuple[int, str, str]] | None


class _Format(TypedDict):
    """The part of a description that stays the same in all versions."""

    kind: str
    version: int


class _About(_Format):
    """The description of an exported file."""

    made_from: dict[str, Any]
    shards: list[_Shard]


def _import_into(store: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Writes the shards of all exported files into the folder of a store, and finishes it."""
    names: list[str] = []
    made_from: dict[str, Any] | None = None
    for path in _exported_files(folder):
        refuse_pointers([path], StoreError)
        with _naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            description = json.loads((file.schema_arrow.metadata or {})[_METADATA_KEY])
            fault = partial(_no_export, path)
            # The version first: a description of another one may have other fields.
            form = check_type(_Format, description, fault)
            if (form["kind"], form["version"]) != (KIND, VERSION):
                raise StoreError(
                    f"{path}: contains {form['kind']} {form['version']}, expected {KIND} {VERSION}"
                )
            about = check_type(_About, description, fault)
            if made_from is not None and about["made_from"] != made_from:
                raise StoreError(f"{path}: not from the same store as the files before it")
            made_from = about["made_from"]
            shards = about["shards"]
            if not shards or len(shards) != file.num_row_groups:
                raise fault(f"{len(shards)} shards in {file.num_row_groups} row groups")
            # Names come from a stranger's file and become paths.
            check_names(names + [shard["name"] for shard in shards], path)
            for group, shard in enumerate(shards):
                _import_shard(file.read_row_group(group), store, shard, made_from, path)
                names.append(shard["name"])
                advance(len(names))
    finish_store(store, names, SCORES)


def _no_export(path: Path, words: str) -> StoreError:
    return StoreError(f"{path}: not a complete export of scores: {words}; export the store again")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns any error from a file that is not an export into a StoreError that names the file."""
    try:
        yield
    except StoreError:
        raise
    except (pa.ArrowException, OSError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _no_export(path, repr(error)) from error


def _exported_files(folder: Path) -> list[Path]:
    """The files of an export, in order. Raises: StoreError if some are missing."""
    files = sorted(folder.glob("scores-*-of-*.parquet")) if folder.is_dir() else []
    count = len(files)
    expected = [f"scores-{number:05d}-of-{count:05d}.parquet" for number in range(count)]
    if not files or [path.name for path in files] != expected:
        raise StoreError(
            f"{folder}: expected all files from scores-00000-of-N.parquet, found "
            f"{', '.join(path.name for path in files) or 'none'}"
        )
    return files


def _import_shard(
    table: pa.Table, store: Path, description: _Shard, made_from: dict[str, Any], path: Path
) -> None:
    """Writes a shard from its rows. Raises: StoreError if it is not the shard described."""
    hashes = [bytes.fromhex(text) for text in table["text_hash"].to_pylist()]
    columns = [_lists(table[name]) for name in ("nll", "byte_start", "byte_end")]
    documents = [
        DocumentScores(np.stack([start, end], axis=1), nll.astype(np.float16), num_unscored=count)
        for nll, start, end, count in zip(*columns, table["unscored"].to_pylist(), strict=True)
    ]
    frames = None
    if num_candidates(made_from):
        texts, sizes = table["candidates"].to_pylist(), _lists(table["candidate_sizes"])
        frames = [
            [text[start:stop] for start, stop in pairwise(np.cumsum([0, *of_document]))]
            for text, of_document in zip(texts, sizes, strict=True)
        ]
    file = store / f"{description['name']}.arrow"
    refused = [Refused(*fields) for fields in description["refused"] or ()]
    write_scores(file, hashes, documents, made_from, refused=refused, frames=frames)
    shard = ScoreShard(file)
    expected = description["text_hash"], description["counts"]
    # The shard is written and then compared: so what is compared is what the store has on disk.
    is_same = (shard.description.text_hash, shard.description.counts) == expected
    if not is_same or shard.checks.tolist() != table["check"].to_pylist():
        file.unlink()
        raise StoreError(f"{path}: shard {description['name']} is damaged (its checks differ)")


def _lists(column: pa.ChunkedArray) -> list[Any]:
    """The arrays in a column of lists, without a copy of each."""
    array = column.combine_chunks()
    flat, offsets = array.values.to_numpy(), array.offsets.to_numpy()
    return [flat[start:stop] for start, stop in pairwise(offsets)]


def dataset_card(store: ScoreStore, losses: dict[str, Any], title: str) -> str:
    """A dataset card in Markdown, with the metadata of the Hugging Face hub on top.

    Args: losses: the result of `losses_of`.
    """
    made_from = store.manifest.made_from
    settings = "\n".join(
        f"| {name.replace('_', ' ')} | `{made_from[name]}` |" for name in made_from
    )
    candidates = ""
    if store.candidates:
        candidates = (
            "| `candidates`, `candidate_sizes` | likely or `sampled` ids, their log-probabilities, "
            "encoded (`vocagno.teacher.candidates`), and the sizes of the frames |\n"
        )
    quantiles = "\n".join(
        f"| {float(share):.0%} | {value:.3f} |"
        for share, value in losses.get("quantiles", {}).items()
    )
    metadata = DatasetCardData(
        pretty_name=title,
        tags=["vocagno", "token-level-losses"],
        size_categories=[_size_category(len(store))],
        configs=[{"config_name": "default", "data_files": "scores-*.parquet"}],
    )
    body = f"""# {title}

Losses of a teacher language model: one for each token of {len(store):,} documents,
{store.num_tokens:,} tokens in all. Each loss is stored with the bytes of text that its token
covers, so it can guide a student with any tokenizer. The texts are not included: a document is
identified by the hash of its text. Decide which licence applies to the scores, the teacher's or the
text's, before you share them.

| column | |
|---|---|
| `text_hash` | BLAKE2b, 16 bytes, hexadecimal, of the document's UTF-8 bytes |
| `nll` | loss of each teacher token in nats; NaN where it has none |
| `byte_start`, `byte_end` | half-open range of UTF-8 bytes that each token covers |
| `unscored` | number of tokens whose loss was NaN or infinite |
| `check` | CRC-32 of the document as stored |
{candidates}
Import into a store: `vocagno scores import FOLDER --out STORE`, then `--teacher.scores STORE`.

## Made from

| | |
|---|---|
{settings}

## Losses

{losses["scored"]:,} tokens have a loss, {losses["without"]:,} have none.

| quantile | nats |
|---|---|
{quantiles}
"""
    return str(DatasetCard(f"---\n{metadata}\n---\n{body}"))


def _size_category(documents: int) -> str:
    """The hub's name for a data set of this size."""
    borders = ["1K", "10K", "100K", "1M", "10M", "100M", "1B"]
    between = [f"{low}<n<{high}" for low, high in pairwise(borders)]
    reached = bisect_right([10**power for power in range(3, 10)], documents)
    return ["n<1K", *between, "n>1B"][reached]

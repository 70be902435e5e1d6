"""`vocagno scores`: show, describe, compare, check and share stores of teacher scores."""

import json
import math
import sys
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.arguments import CORPUS, TOKENIZER
from vocagno.errors import InputError, require
from vocagno.system.hub import HubRepository
from vocagno.system.progress import (
    Progress,
    draw_in_terminal,
    in_columns,
    in_table,
    track_documents,
)
from vocagno.system.signals import DONE, FOUND_WRONG
from vocagno.views.passage import number, shorten, token_label

if TYPE_CHECKING:
    from rich.table import Table

    from vocagno.teacher.scores import ScoreStore


def add_info(parser: Any) -> None:
    """Describe a store: sizes, counts, what it was made from, and the spread of the losses."""
    _add_store(parser)


def add_show(parser: Any) -> None:
    """Show the losses of a teacher in one document, token by token, and its candidates."""
    _add_store(parser)
    parser.add_argument("--corpus", type=str, required=True, help=f"its text: {CORPUS}")
    parser.add_argument("--document", type=int, default=0, help="its number there, from 0")
    parser.add_argument(
        "--tokenizer", type=str | None, help=f"of the teacher, to name candidates: {TOKENIZER}"
    )


def add_compare(parser: Any) -> None:
    """Compare teachers on texts by their stored losses: nats a byte, and where one is ahead.

    Losses are compared where every teacher has one for the same bytes. A teacher is ahead of
    another on the lines on which it loses less: on a share of the bytes, by nats a byte there.
    "mixture": the loss of the mean of the teachers' probabilities of each smallest run of bytes at
    whose ends all teachers' tokens end. "partial": documents with bytes without a loss of this one.
    """
    parser.add_argument(
        "stores", type=Path, nargs="+", metavar="STORE", help="scores of each teacher, two or more"
    )
    parser.add_argument(
        "--corpus", type=str, nargs="+", required=True, help=f"texts, one or more: {CORPUS}"
    )


def add_verify(parser: Any) -> None:
    """Compare every file with its hash and every document with its checksum."""
    _add_store(parser)
    parser.add_argument(
        "--discard",
        action="store_true",
        help="remove damaged shards and the manifest, so that `vocagno score` makes them again",
    )


def add_export(parser: Any) -> None:
    """Write a store as Parquet files with a dataset card, to share it."""
    _add_store(parser)
    parser.add_argument("--out", type=Path, required=True, help="new folder for the files")
    parser.add_argument("--title", type=str, default="Teacher scores", help="of the dataset card")
    parser.add_argument(
        "--push_to_hub",
        type=str | None,
        help="repository to upload the files to, as a data set of the Hugging Face hub",
    )
    parser.add_argument(
        "--hub_private_repo", type=bool, default=True, help="whether a new repository is private"
    )


def add_import(parser: Any) -> None:
    """Make a store from exported Parquet files, with the bytes of the original."""
    parser.add_argument("folder", type=Path, help="folder with scores-*.parquet")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new store")


def add_finish(parser: Any) -> None:
    """Write the manifest of a store whose parts were made by `vocagno score --shards I/N`."""
    parser.add_argument("store", type=Path, help="folder in which all parts were made")


def _add_store(parser: Any) -> None:
    parser.add_argument("store", type=Path, help="folder of a finished store of scores")


def info(options: Any) -> dict[str, Any] | None:
    """Counts and the distribution of the losses."""
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.integrations.scores_on_the_hub import losses_of
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    with Progress("reading", store.num_tokens, unit="tokens", show=True) as progress:
        losses = losses_of(store, progress.at)
    found = _counts(store) | {
        **_size(store),
        "unscored_documents": store.manifest.count("unscored_documents"),
        "unscored_tokens": store.manifest.count("unscored_tokens"),
        REFUSED: store.manifest.count(REFUSED),
    }
    if store.candidates:
        size = sum(shard.candidate_bytes for shard in store.shards())
        found["candidates"] = store.candidates
        found["candidate_bytes_per_token"] = round(size / max(1, store.num_tokens), 3)
    say_omitted(store.folder, len(store), found[REFUSED])
    made_from = store.manifest.made_from
    if options.json:
        return found | {"made_from": made_from, "losses": losses}
    shown = {name: f"{n:,}" if isinstance(n, int) else n for name, n in found.items()}
    print(in_columns(shown))
    print("\nmade from\n" + in_columns(made_from))
    print("\nlosses, in nats\n" + in_columns(_in_words(losses)))
    return None


def show(options: Any) -> dict[str, Any] | None:
    """The tokens with their spans and losses, and of their candidates the first six or all."""
    from vocagno.data.corpus import read_batches
    from vocagno.teacher.scores import ScoresOfTexts, ScoreStore
    from vocagno.tokens.token_spans import TokenSpans

    store, place = ScoreStore(options.store), options.document
    spans = None if options.tokenizer is None else TokenSpans.from_pretrained(options.tokenizer)
    known = store.manifest.made_from.get("tokenizer")
    require(
        spans is None or spans.fingerprint == known,
        f"--tokenizer: is not that of the scores ({known}); omit it, or give the teacher's",
    )
    texts = chain.from_iterable(track_documents(read_batches(options.corpus), "reading"))
    text = None if place < 0 else next(islice(texts, place, None), None)
    if text is None:
        raise InputError(f"--document: {options.corpus} has no document {place}")
    (found,) = ScoresOfTexts(store, check=False, candidates=store.candidates > 0).find([text])
    require(
        not found.missing,
        f"{store.folder}: has no scores of document {place} of {options.corpus}: {found.missing}",
    )
    pieces = [] if spans is None else spans.pieces()

    def named(index: int) -> str:
        piece = pieces[index] or b"" if spans is not None else b""
        surface = str(index) if spans is None else spans.token(index) or ""
        return token_label(piece, 0, len(piece), surface)

    data, losses = text.encode(), found.nll.astype(float).tolist()
    tokens = [
        {"start": start, "end": end, "loss": None if math.isnan(loss) else round(loss, 4)}
        for (start, end), loss in zip(found.spans.tolist(), losses, strict=True)
    ]
    if (given := found.candidates) is not None:
        columns = given.tokens.tolist(), given.ids.tolist(), given.probabilities.tolist()
        for token, real, ids, each in zip(tokens, *columns, strict=True):
            best = [(i, p) for i, p in zip(ids, each, strict=True) if i >= 0]
            candidates = [{"id": i, "text": named(i), "probability": round(p, 5)} for i, p in best]
            token |= {"id": real, "candidates": candidates}
    if options.json:
        return {"store": str(store.folder), "document": place, "text": text, "tokens": tokens}
    draw_in_terminal(_table_of(tokens, data))
    return None


def _table_of(tokens: list[dict[str, Any]], data: bytes) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name in ("bytes", "token", "loss", "candidates"):
        table.add_column(name, no_wrap=name != "candidates")  # only that one is cut
    for token in tokens:
        start, end, best = token["start"], token["end"], token.get("candidates", [])[:6]
        cells = (
            f"{start}-{end}",
            shorten(token_label(data, start, end, ""), 20),
            number(token["loss"], ".2f", missing="-"),
            "  ".join(f"{one['text']} {one['probability']:.1%}" for one in best),
        )
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    return table


def compare(options: Any) -> dict[str, Any] | None:
    """The comparison on each text and on all of them."""
    from vocagno.data.corpus import read_batches
    from vocagno.teacher.comparison import compare
    from vocagno.teacher.scores import ScoreStore

    corpora = {
        name: track_documents(read_batches(name), f"comparing {name}") for name in options.corpus
    }
    paths = [Path(name).resolve() for name in options.corpus]
    for name, path in zip(options.corpus, paths, strict=True):
        within = sum(one == path or one in path.parents for one in paths)
        require(within == 1, f"--corpus: {name} is named twice, or its folder, too; name it once")
    stores = [ScoreStore(folder) for folder in options.stores]
    of_corpora = compare(stores, corpora)
    first, *others = of_corpora.values()
    names = [str(store.folder) for store in stores]
    found = {name: sums.as_dict(names) for name, sums in of_corpora.items()}
    total = sum(others, start=first).as_dict(names)
    sizes = [_counts(store) | _size(store) for store in stores]
    if options.json:
        return {"stores": sizes, "corpora": found, "total": total}
    labels = [f"{number} {name}" for number, name in enumerate(names, 1)]
    words = ("tokens", "bytes", "bytes_per_token")
    lines = [["store", "tokens", "bytes", "bytes a token"]]
    for label, size in zip(labels, sizes, strict=True):
        lines.append([label, *(f"{size[word]:,}" for word in words)])
    print(in_table(lines))
    for name, one in [*found.items(), *([("total", total)] if others else [])]:
        share = f"{one['compared_bytes'] / one['bytes']:.2%} compared"
        print(f"\n{name}: {one['documents']:,} documents, {one['bytes']:,} bytes, {share}")
        print(in_table(_comparison_lines(one, labels)))
    return None


def _comparison_lines(found: dict[str, Any], labels: list[str]) -> list[list[str]]:
    """The table of one text: a line for each teacher, and one for their mixture."""
    counts, names = ("missing", "refused", "partial"), list(found["teachers"])
    heading = ["", "nats a byte", *(f"ahead of {n}" for n in range(1, len(names) + 1)), *counts]
    lines, words = [heading], "{share_of_bytes:.1%} by {nats_per_byte:.3f}"
    for label, one in zip(labels, found["teachers"].values(), strict=True):
        leads = [one["ahead_of"].get(other, {}) for other in names]
        cells = [words.format(**lead) if any(lead.values()) else "-" for lead in leads]
        numbers = (f"{one[f'{name}_documents']:,}" for name in counts)
        lines.append([label, f"{one['nats_per_byte']:.4f}", *cells, *numbers])
    blank = [""] * (len(heading) - 2)
    return [*lines, ["mixture", f"{found['mixture_nats_per_byte']:.4f}", *blank]]


def verify(options: Any) -> dict[str, Any] | int:
    """Says what is damaged. With --discard removes it; else the exit status says so, too."""
    from vocagno.data.store.format import MANIFEST
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    read = 0
    with Progress("verifying", store.num_bytes, unit="B", show=True) as progress:

        def advance(entry: Any) -> None:
            nonlocal read
            read += entry.bytes
            progress.at(read)

        damages = list(store.damages(advance))
    found = _counts(store) | {"damaged": [what for _, what in damages]}
    if not damages:
        return found if options.json else found | {"damaged": "nothing"}
    print(json.dumps(found) if options.json else "\n".join(found["damaged"]))
    if options.discard:
        (store.folder / MANIFEST).unlink()
        damaged = {entry.file(store.folder) for entry, _ in damages}
        for path in damaged:
            path.unlink(missing_ok=True)
        print(f"removed {len(damaged):,} shards; run `vocagno score` again", file=sys.stderr)
        return DONE
    print(
        f"{store.folder}: {len(damages):,} damages; --discard removes the damaged shards, and "
        "`vocagno score` makes them again",
        file=sys.stderr,
    )
    return FOUND_WRONG


def export(options: Any) -> dict[str, Any]:
    """The files, and how large they are."""
    from vocagno.integrations.scores_on_the_hub import dataset_card, export_scores, losses_of
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    repository = None
    if options.push_to_hub is not None:
        repository = HubRepository(options.push_to_hub, "dataset", options.hub_private_repo)
        repository.create()  # a wrong name or token is found before the export
    card = dataset_card(store, losses_of(store), options.title)
    with Progress("exporting", len(store.manifest.shards), unit="shards", show=True) as progress:
        files = export_scores(store, options.out, card, progress.at)
    size = sum(file.stat().st_size for file in files)
    return {
        "folder": str(options.out),
        "files": len(files),
        **_counts(store),
        "bytes": size,
        "bytes_per_token": round(size / max(1, store.num_tokens), 3),
        **({} if repository is None else {"pushed": repository.push(options.out)}),
    }


def import_(options: Any) -> dict[str, Any]:
    """The store that was made."""
    from vocagno.integrations.scores_on_the_hub import import_scores

    with Progress("importing", None, unit="shards", show=True) as progress:
        store = import_scores(options.folder, options.out, progress.at)
    return _counts(store)


def finish(options: Any) -> dict[str, Any]:
    """What the finished store has."""
    from vocagno.data.store.building import finish_parts
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.teacher.scores import SCORES, ScoreStore

    finish_parts(options.store, SCORES)
    store = ScoreStore(options.store)
    say_omitted(store.folder, len(store), store.manifest.count(REFUSED))
    return _counts(store)


def _counts(store: "ScoreStore") -> dict[str, Any]:
    return {
        "store": str(store.folder),
        "shards": len(store.manifest.shards),
        "documents": len(store),
        "tokens": store.num_tokens,
    }


def _size(store: "ScoreStore") -> dict[str, Any]:
    """On disk."""
    per_token = round(store.num_bytes / max(1, store.num_tokens), 3)
    return {"bytes": store.num_bytes, "bytes_per_token": per_token}


def _in_words(losses: dict[str, Any]) -> dict[str, str]:
    """The distribution, with a bar for each bin of the histogram."""
    words = {name: f"{losses[name]:,}" for name in ("scored", "without")}
    if "mean" not in losses:
        return words
    words["mean"] = f"{losses['mean']:.3f} ± {losses['standard_deviation']:.3f}"
    words |= {f"{float(q):.0%}": f"{value:.3f}" for q, value in losses["quantiles"].items()}
    words["max"] = f"{losses['max']:.3f}"
    edges = [*map(float, losses["histogram"]), None]
    for (low, high), count in zip(pairwise(edges), losses["histogram"].values(), strict=True):
        share = count / losses["scored"]
        ends = f"{low:g} to {high:g}" if high is not None else f"{low:g} and more"
        words[ends] = f"{share:7.2%} {'█' * round(40 * share)}"
    return words

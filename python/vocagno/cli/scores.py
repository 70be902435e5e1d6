"""The commands `vocagno scores ...`: show, compare, check and share stores of teacher scores."""

import json
import math
import sys
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.arguments import CORPUS, TOKENIZER, add_max_refused
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

    from vocagno.teacher.score_store import ScoreStore


def add_info(parser: Any) -> None:
    """Describe a store: sizes, counts, what it was made from, and the spread of the losses."""
    _add_store(parser)


def add_show(parser: Any) -> None:
    """Show the losses of a teacher in one document, token by token, and its candidates."""
    _add_store(parser)
    parser.add_argument("--corpus", type=str, required=True, help=f"The scored corpus: {CORPUS}.")
    parser.add_argument(
        "--document", type=int, default=0, help="The number of the document in it, from 0."
    )
    parser.add_argument(
        "--tokenizer",
        type=str | None,
        help=f"The teacher's tokenizer, which turns candidates into text: {TOKENIZER}.",
    )


def add_compare(parser: Any) -> None:
    """Compare teachers on texts by their stored losses: nats a byte, and where one is ahead.

    Losses are compared on bytes for which every teacher has one. A teacher is ahead of another on
    the lines on which it loses less; the table shows the share of the bytes on these lines, and the
    difference there in nats a byte. "mixture" is the loss of the mean of the teachers'
    probabilities, over the shortest runs of bytes at whose ends all teachers' tokens end. "partial"
    counts the documents in which some bytes have no loss of this teacher.
    """
    parser.add_argument(
        "stores", type=Path, nargs="+", metavar="STORE", help="The stores of two or more teachers."
    )
    parser.add_argument(
        "--corpus",
        type=str,
        nargs="+",
        required=True,
        help=f"One or more corpora to compare the teachers on: {CORPUS}.",
    )


def add_verify(parser: Any) -> None:
    """Compare every file with its hash and every document with its checksum."""
    _add_store(parser)
    parser.add_argument(
        "--discard",
        action="store_true",
        help="Remove damaged shards and the manifest, so that `vocagno score` makes them again.",
    )


def add_export(parser: Any) -> None:
    """Write a store as Parquet files with a dataset card, to share it."""
    _add_store(parser)
    parser.add_argument("--out", type=Path, required=True, help="The new folder for the files.")
    parser.add_argument(
        "--title", type=str, default="Teacher scores", help="The title of the dataset card."
    )
    parser.add_argument(
        "--push_to_hub",
        type=str | None,
        help="Upload the files to this dataset repository of the Hugging Face hub.",
    )
    parser.add_argument(
        "--hub_private_repo",
        type=bool,
        default=True,
        help="Whether a repository that the upload creates is private.",
    )


def add_import(parser: Any) -> None:
    """Make a store from exported Parquet files, with the bytes of the original."""
    parser.add_argument("folder", type=Path, help="The folder with scores-*.parquet.")
    parser.add_argument("--out", type=Path, required=True, help="The folder of the new store.")


def add_finish(parser: Any) -> None:
    """Write the manifest of a store whose parts were made by `vocagno score --shards I/N`."""
    parser.add_argument("store", type=Path, help="The folder in which all parts were made.")
    add_max_refused(parser)


def _add_store(parser: Any) -> None:
    parser.add_argument("store", type=Path, help="The folder of a finished store of scores.")


def info(options: Any) -> dict[str, Any] | None:
    """Returns or prints counts and sizes of a store, its origin and the spread of its losses."""
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.integrations.scores_on_the_hub import losses_of
    from vocagno.teacher.score_store import ScoreStore

    store = ScoreStore(options.store)
    with Progress("reading", store.num_tokens, unit="tokens", show=True) as progress:
        losses = losses_of(store, progress.at)
    facts = _counts(store) | {
        **_disk_size(store),
        "unscored_documents": store.manifest.count("unscored_documents"),
        "unscored_tokens": store.manifest.count("unscored_tokens"),
        REFUSED: store.manifest.count(REFUSED),
    }
    if store.candidates:
        size = sum(shard.candidate_bytes for shard in store.shards())
        facts["candidates"] = store.candidates
        facts["candidate_bytes_per_token"] = round(size / max(1, store.num_tokens), 3)
    say_omitted(store.folder, len(store), facts[REFUSED])
    made_from = store.manifest.made_from
    if options.json:
        return facts | {"made_from": made_from, "losses": losses}
    cells = {name: f"{n:,}" if isinstance(n, int) else n for name, n in facts.items()}
    print(in_columns(cells))
    print("\nmade from\n" + in_columns(made_from))
    print("\nlosses, in nats\n" + in_columns(_distribution_rows(losses)))
    return None


def show(options: Any) -> dict[str, Any] | None:
    """Shows the tokens of a document with spans, losses and candidates.

    The table has the six most probable candidates of each token; --json has all of them.
    """
    from vocagno.data.corpus import read_batches
    from vocagno.teacher.score_store import ScoresOfTexts, ScoreStore
    from vocagno.tokens.token_spans import TokenSpans

    store, document = ScoreStore(options.store), options.document
    spans = None if options.tokenizer is None else TokenSpans.from_pretrained(options.tokenizer)
    fingerprint = store.manifest.made_from.get("tokenizer")
    require(
        spans is None or spans.fingerprint == fingerprint,
        f"--tokenizer: {options.tokenizer} is not that of the scores ({fingerprint}); omit it, or "
        "give the teacher's",
    )
    texts = chain.from_iterable(track_documents(read_batches(options.corpus), "reading"))
    is_number = 0 <= document <= sys.maxsize  # beyond it `islice` raises
    text = next(islice(texts, document, None), None) if is_number else None
    if text is None:
        raise InputError(f"--document: {options.corpus} has no document {document}")
    (scores,) = ScoresOfTexts(store, check=False, candidates=store.candidates > 0).find([text])
    require(
        not scores.missing,
        f"{store.folder}: the store has no scores of document {document} of {options.corpus}: "
        f"{scores.missing}",
    )
    pieces = [] if spans is None else spans.pieces()

    def label(index: int) -> str:
        piece = pieces[index] or b"" if spans is not None else b""
        surface = str(index) if spans is None else spans.token(index) or ""
        return token_label(piece, 0, len(piece), surface)

    data, losses = text.encode(), scores.nll.astype(float).tolist()
    tokens = [
        {"start": start, "end": end, "loss": None if math.isnan(loss) else round(loss, 4)}
        for (start, end), loss in zip(scores.spans.tolist(), losses, strict=True)
    ]
    if (stored := scores.candidates) is not None:
        columns = stored.tokens.tolist(), stored.ids.tolist(), stored.probabilities.tolist()
        for token, token_id, ids, probabilities in zip(tokens, *columns, strict=True):
            # A token with fewer candidates than others is filled up with ids of -1.
            pairs = [(i, p) for i, p in zip(ids, probabilities, strict=True) if i >= 0]
            candidates = [{"id": i, "text": label(i), "probability": round(p, 5)} for i, p in pairs]
            token |= {"id": token_id, "candidates": candidates}
    if options.json:
        return {"store": str(store.folder), "document": document, "text": text, "tokens": tokens}
    draw_in_terminal(_token_table(tokens, data))
    return None


def _token_table(tokens: list[dict[str, Any]], data: bytes) -> "Table":
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
            "  ".join(f"{candidate['text']} {candidate['probability']:.1%}" for candidate in best),
        )
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    return table


def compare(options: Any) -> dict[str, Any] | None:
    """Compares the teachers on each corpus, and on all of them together."""
    from vocagno.data.corpus import read_batches
    from vocagno.teacher.comparison import compare
    from vocagno.teacher.score_store import ScoreStore

    corpora = {
        name: track_documents(read_batches(name), f"comparing {name}") for name in options.corpus
    }
    paths = [Path(name).resolve() for name in options.corpus]
    # A text that is read twice would count twice in the total.
    for name, path in zip(options.corpus, paths, strict=True):
        times = sum(corpus == path or corpus in path.parents for corpus in paths)
        require(times == 1, f"--corpus: {name} is named twice, or its folder, too; name it once")
    stores = [ScoreStore(folder) for folder in options.stores]
    for warning in filter(None, (store.warning_of_pieces() for store in stores)):
        print(f"warning: {warning}", file=sys.stderr)
    sums_of_corpora = compare(stores, corpora)
    first, *further = sums_of_corpora.values()
    names = [str(store.folder) for store in stores]
    comparisons = {name: sums.as_dict(names) for name, sums in sums_of_corpora.items()}
    total = sum(further, start=first).as_dict(names)
    sizes = [_counts(store) | _disk_size(store) for store in stores]
    if options.json:
        return {"stores": sizes, "corpora": comparisons, "total": total}
    labels = [f"{number} {name}" for number, name in enumerate(names, 1)]
    columns = ("tokens", "bytes", "bytes_per_token")
    lines = [["store", "tokens", "bytes", "bytes a token"]]
    for label, size in zip(labels, sizes, strict=True):
        lines.append([label, *(f"{size[column]:,}" for column in columns)])
    print(in_table(lines))
    shown = comparisons | ({"total": total} if further else {})
    for name, comparison in shown.items():
        documents, num_bytes = comparison["documents"], comparison["bytes"]
        share = f"{comparison['compared_bytes'] / num_bytes:.2%} compared"
        print(f"\n{name}: {documents:,} documents, {num_bytes:,} bytes, {share}")
        print(in_table(_comparison_lines(comparison, labels)))
    return None


def _comparison_lines(comparison: dict[str, Any], labels: list[str]) -> list[list[str]]:
    """Makes the table of one corpus: a line for each teacher, and one for their mixture."""
    counts, names = ("missing", "refused", "partial"), list(comparison["teachers"])
    heading = ["", "nats a byte", *(f"ahead of {n}" for n in range(1, len(names) + 1)), *counts]
    lines, lead_format = [heading], "{share_of_bytes:.1%} by {nats_per_byte:.3f}"
    for label, teacher in zip(labels, comparison["teachers"].values(), strict=True):
        leads = [teacher["ahead_of"].get(name, {}) for name in names]
        cells = [lead_format.format(**lead) if any(lead.values()) else "-" for lead in leads]
        numbers = (f"{teacher[f'{name}_documents']:,}" for name in counts)
        lines.append([label, f"{teacher['nats_per_byte']:.4f}", *cells, *numbers])
    blank = [""] * (len(heading) - 2)
    return [*lines, ["mixture", f"{comparison['mixture_nats_per_byte']:.4f}", *blank]]


def verify(options: Any) -> dict[str, Any] | int:
    """Prints what is damaged. With --discard it is removed; without, the exit status tells, too."""
    from vocagno.data.store.format import MANIFEST
    from vocagno.teacher.score_store import ScoreStore

    store = ScoreStore(options.store)
    bytes_read = 0
    with Progress("verifying", store.num_bytes, unit="B", show=True) as progress:

        def advance(entry: Any) -> None:
            nonlocal bytes_read
            bytes_read += entry.bytes
            progress.at(bytes_read)

        damages = list(store.damages(advance))
    report = _counts(store) | {"damaged": [words for _, words in damages]}
    if not damages:
        return report if options.json else report | {"damaged": "nothing"}
    print(json.dumps(report) if options.json else "\n".join(report["damaged"]))
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
    """Writes the files and uploads them if asked. Returns where they are, and their size."""
    from vocagno.integrations.scores_on_the_hub import dataset_card, export_scores, losses_of
    from vocagno.teacher.score_store import ScoreStore

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
    """Makes the store. Returns its counts."""
    from vocagno.integrations.scores_on_the_hub import import_scores

    with Progress("importing", None, unit="shards", show=True) as progress:
        store = import_scores(options.folder, options.out, progress.at)
    return _counts(store)


def finish(options: Any) -> dict[str, Any]:
    """Writes the manifest. Returns the counts of the finished store."""
    from vocagno.data.store.building import finish_parts
    from vocagno.data.store.format import REFUSED, RefusalLimit, say_omitted
    from vocagno.teacher.score_store import SCORES, ScoreStore
    from vocagno.teacher.scoring import check_has_losses

    finish_parts(options.store, SCORES)
    store = ScoreStore(options.store)
    # No part saw the whole store.
    refused = store.manifest.count(REFUSED)
    RefusalLimit(store.folder, len(store), options.max_refused).check(refused)
    check_has_losses(store, "its text")
    say_omitted(store.folder, len(store), refused)
    return _counts(store)


def _counts(store: "ScoreStore") -> dict[str, Any]:
    """Returns the folder of a store and its numbers of shards, documents and tokens."""
    return {
        "store": str(store.folder),
        "shards": len(store.manifest.shards),
        "documents": len(store),
        "tokens": store.num_tokens,
    }


def _disk_size(store: "ScoreStore") -> dict[str, Any]:
    per_token = round(store.num_bytes / max(1, store.num_tokens), 3)
    return {"bytes": store.num_bytes, "bytes_per_token": per_token}


def _distribution_rows(losses: dict[str, Any]) -> dict[str, str]:
    """Words the distribution of the losses, with a bar for each bin of the histogram."""
    rows = {name: f"{losses[name]:,}" for name in ("scored", "without")}
    if "mean" not in losses:
        return rows
    rows["mean"] = f"{losses['mean']:.3f} ± {losses['standard_deviation']:.3f}"
    rows |= {f"{float(q):.0%}": f"{value:.3f}" for q, value in losses["quantiles"].items()}
    rows["max"] = f"{losses['max']:.3f}"
    edges = [*map(float, losses["histogram"]), None]
    for (low, high), count in zip(pairwise(edges), losses["histogram"].values(), strict=True):
        share = count / losses["scored"]
        ends = f"{low:g} to {high:g}" if high is not None else f"{low:g} and more"
        rows[ends] = f"{share:7.2%} {'█' * round(40 * share)}"
    return rows

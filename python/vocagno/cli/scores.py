"""`vocagno scores` and `vocagno bake`: describe, compare, check and share stores of teacher scores,
and write losses parallel to a token file of another trainer."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocagno.alignment.mapping import Reduction
from vocagno.cli.guidance import add_rule
from vocagno.config.arguments import CORPUS, TOKENIZER, add_max_refused
from vocagno.errors import require
from vocagno.system.hub import HubRepository
from vocagno.system.progress import Progress, in_columns, in_table, tracked
from vocagno.system.signals import DONE, FOUND_WRONG, terminable

if TYPE_CHECKING:
    from vocagno.teacher.scores import ScoreStore


def add_info(parser: Any) -> None:
    """Describe a store: sizes, counts, what it was made from, and the spread of the losses."""
    _add_store(parser)


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


def compare(options: Any) -> dict[str, Any] | None:
    """The comparison on each text and on all of them."""
    from vocagno.data.corpus import read_batches
    from vocagno.teacher.comparison import compare
    from vocagno.teacher.scores import ScoreStore

    corpora = {name: tracked(read_batches(name), f"comparing {name}") for name in options.corpus}
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
    lines = [heading]
    for label, one in zip(labels, found["teachers"].values(), strict=True):
        leads = [one["ahead_of"].get(other, {}) for other in names]
        cells = [
            "{share_of_bytes:.1%} by {nats_per_byte:.3f}".format(**lead)
            if any(lead.values())
            else "-"
            for lead in leads
        ]
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
    count = len(store.manifest.shards)
    with Progress("exporting", count, unit="shards", show=True) as progress:
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
    edges = [float(edge) for edge in losses["histogram"]]
    for low, high, count in zip(
        edges, [*edges[1:], None], losses["histogram"].values(), strict=True
    ):
        share = count / losses["scored"]
        ends = f"{low:g} to {high:g}" if high is not None else f"{low:g} and more"
        words[ends] = f"{share:7.2%} {'█' * round(40 * share)}"
    return words


def add_bake(parser: Any) -> None:
    """Write the teacher's loss of each token of a token file, for trainers that read it.

    A float16 for each token of a `.bin`, `.ds` or `.npy`, and on request a weight.
    """
    parser.add_argument("tokens", type=Path, help=".bin with .idx, .ds with .ds.index, or .npy")
    parser.add_argument("--scores", type=Path, required=True, help="store of teacher scores")
    parser.add_argument("--tokenizer", type=str, required=True, help=f"of the ids: {TOKENIZER}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the streams")
    parser.add_argument(
        "--eos", type=str | None, help=".npy: token after every document; default: the tokenizer's"
    )
    parser.add_argument(
        "--boundaries", type=Path | None, help=".npy: places of the documents, in place of --eos"
    )
    parser.add_argument(
        "--dtype",
        type=Literal["uint16", "uint32"] | None,
        help=".npy without NumPy's header: type of the ids",
    )
    parser.add_argument(
        "--unit", type=Literal["token", "group"], default="token", help="as guidance.unit"
    )
    parser.add_argument(
        "--aggregation", type=Reduction, default="max", help="as guidance.aggregation"
    )
    parser.add_argument(
        "--min_coverage", type=float, default=0.99, help="stop if fewer tokens have a loss"
    )
    add_max_refused(parser)
    parser.add_argument(
        "--weights", action="store_true", help="write weights, too: by the rule of guidance"
    )
    add_rule(parser)


def bake(options: Any) -> dict[str, Any]:
    """Writes the streams where they are missing; what they hold."""
    from vocagno.config.guidance import GuidanceConfig

    rule = options.guidance if options.weights else None
    require(
        options.weights or options.guidance == GuidanceConfig(),
        "--guidance: is the rule of the weights; add --weights, or omit it",
    )
    require(
        options.unit == "token" or options.aggregation == "max",
        f"--aggregation: {options.aggregation}: a group adds its losses up; omit it, or give "
        "--unit token",
    )
    require(
        0 <= options.min_coverage <= 1,
        f"--min_coverage must be in [0, 1], got {options.min_coverage}",
    )
    losses = GuidanceConfig(
        unit=options.unit, aggregation=options.aggregation, min_coverage=options.min_coverage
    )

    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.integrations.baking import bake_file, check_rule
    from vocagno.teacher.scores import ScoreStore

    if rule is not None:
        check_rule(rule)
    file, spans = _opened(options)
    store = ScoreStore(options.scores)
    given = file, spans, store, options.out, losses, rule
    with terminable():
        counts = bake_file(*given, max_refused=options.max_refused, show_progress=True)
    say_omitted(options.out, counts["documents"], counts.get(REFUSED, 0))
    return {"folder": str(options.out), **counts}


def _opened(options: Any) -> tuple[Any, Any]:
    """The token file, and the tokenizer of its ids."""
    from vocagno.integrations.token_files import open_token_file, tokens_path
    from vocagno.tokens.student_tokenizer import student_tokenizer
    from vocagno.tokens.token_spans import TokenSpans

    given = {"boundaries": options.boundaries, "dtype": options.dtype}
    if tokens_path(options.tokens).suffix != ".npy" or options.boundaries is not None:
        require(options.eos is None, "--eos: is for a .npy without --boundaries; omit it")
        file = open_token_file(options.tokens, **given)
        return file, TokenSpans.from_pretrained(options.tokenizer)
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    require(
        bool(tokenizer.spans.is_special([tokenizer.eos_id])[0]),
        f"--eos: {tokenizer.eos!r} is an ordinary token of {options.tokenizer} and would count as "
        "text; mark it as special in its tokenizer.json",
    )
    return open_token_file(options.tokens, eos_id=tokenizer.eos_id, **given), tokenizer.spans

"""`vocagno scores`: describe, check and share a store of teacher scores."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.system.signals import DONE, FOUND_WRONG

if TYPE_CHECKING:
    from vocagno.data.store.format import Damage
    from vocagno.teacher.scores import ScoreStore


def add_info(parser: Any) -> None:
    """Describe a store: sizes, counts, what it was made from, and the spread of the losses."""
    _add_store(parser)


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
        "--hub_private_repo",
        type=bool,
        default=True,
        help="whether a new repository is private",
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
    from vocagno.data.store.refusals import REFUSED, say_omitted
    from vocagno.integrations.scores_on_the_hub import losses_of
    from vocagno.system.terminal import in_columns
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    with _progress("reading", store.num_tokens, "tokens") as progress:
        losses = losses_of(store, progress.at)
    found = _counts(store) | {
        "bytes": store.num_bytes,
        "bytes_per_token": round(store.num_bytes / max(1, store.num_tokens), 3),
        "unscored_documents": store.manifest.count("unscored_documents"),
        "unscored_tokens": store.manifest.count("unscored_tokens"),
        REFUSED: store.manifest.count(REFUSED),
    }
    say_omitted(store.folder, len(store), found[REFUSED])
    made_from = store.manifest.made_from
    if options.json:
        return found | {"made_from": made_from, "losses": losses}
    print(in_columns({name: _grouped(value) for name, value in found.items()}))
    print("\nmade from\n" + in_columns(made_from))
    print("\nlosses, in nats\n" + in_columns(_in_words(losses)))
    return None


def verify(options: Any) -> dict[str, Any] | int:
    """Says what is damaged. With --discard removes it; else the exit status says so, too."""
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    read = 0
    damages: list[Damage] = []
    with _progress("verifying", store.num_bytes, "B") as progress:

        def advance(entry: Any) -> None:
            nonlocal read
            read += entry.bytes
            progress.at(read)

        damages.extend(store.damages(advance))
    found = _counts(store) | {"damaged": [damage.what for damage in damages]}
    if not damages:
        return found if options.json else found | {"damaged": "nothing"}
    print(json.dumps(found) if options.json else "\n".join(found["damaged"]))
    if options.discard:
        _discard(store, damages)
        return DONE
    print(
        f"{store.folder}: {len(damages):,} damages; --discard removes the damaged shards, and "
        "`vocagno score` makes them again",
        file=sys.stderr,
    )
    return FOUND_WRONG


def _discard(store: "ScoreStore", damages: "list[Damage]") -> None:
    from vocagno.data.store.format import MANIFEST

    (store.folder / MANIFEST).unlink()
    damaged = {damage.entry.file(store.folder) for damage in damages}
    for path in damaged:
        path.unlink(missing_ok=True)
    print(f"removed {len(damaged):,} shards; run `vocagno score` again", file=sys.stderr)


def export(options: Any) -> dict[str, Any]:
    """The files, and how large they are."""
    from vocagno.integrations.scores_on_the_hub import dataset_card, export_scores, losses_of
    from vocagno.system.hub import HubRepository
    from vocagno.teacher.scores import ScoreStore

    store = ScoreStore(options.store)
    repository = None
    if options.push_to_hub is not None:
        repository = HubRepository(options.push_to_hub, "dataset", options.hub_private_repo)
        repository.create()  # a wrong name or token is found before the export
    card = dataset_card(store, losses_of(store), options.title)
    with _progress("exporting", len(store.manifest.shards), "shards") as progress:
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

    with _progress("importing", None, "shards") as progress:
        store = import_scores(options.folder, options.out, progress.at)
    return _counts(store)


def finish(options: Any) -> dict[str, Any]:
    """What the finished store has."""
    from vocagno.data.store.building import finish_parts
    from vocagno.data.store.refusals import REFUSED, say_omitted
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


def _progress(name: str, total: int | None, unit: str) -> Any:
    from vocagno.system.progress import Progress

    return Progress(name, total, unit=unit, show=True)


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


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

"""The command `vocagno`: words go to stderr, results to stdout."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocagno._vocagno import SpanError
from vocagno.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0, or 2 for an error of the user's."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "vocagno":
            raise
        print(f"error: needs {error.name}: pip install 'vocagno[train]'", file=sys.stderr)
    except (InputError, SpanError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 2


def _run(arguments: list[str]) -> int:
    from jsonargparse import ArgumentError

    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        options = parser.instantiate(options)
    except ArgumentError as error:
        raise InputError(str(error)) from error
    command = options.subcommand
    result = {"score": _score, "prepare": _prepare}[command](options[command])
    if options[command].json:
        print(json.dumps(result))
    else:
        width = max(map(len, result))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in result.items()))
    return 0


def _parser() -> Any:
    from jsonargparse import ArgumentParser

    from vocagno.config import DataConfig, TeacherConfig

    cache = DataConfig.__dataclass_fields__["cache"].default
    parser = ArgumentParser(prog="vocagno", description=__doc__, exit_on_error=False)
    commands = parser.add_subcommands()
    score = ArgumentParser(
        description="Runs a teacher over a corpus and stores one loss a token.", exit_on_error=False
    )
    score.add_argument("corpus", type=Path, help="JSON Lines with a `text`, or a folder of them")
    score.add_argument("--out", type=Path, help="folder of the store; default: in the cache")
    score.add_class_arguments(TeacherConfig, "teacher", skip={"scores"})
    commands.add_subcommand("score", score)
    prepare = ArgumentParser(
        description="Tokenizes a corpus for a student and packs it into rows, in the cache.",
        exit_on_error=False,
    )
    prepare.add_argument("corpus", type=Path, help="JSON Lines with a `text`, or a folder of them")
    prepare.add_argument(
        "--tokenizer", required=True, help="tokenizer.json(.gz), folder or hub name"
    )
    prepare.add_argument("--eos", type=str, help="token after every document")
    prepare.add_argument("--seq_len", type=int, default=2048, help="predicted tokens of a row")
    commands.add_subcommand("prepare", prepare)
    for command in (score, prepare):
        command.add_argument("--config", action="config", help="YAML file with these options")
        command.add_argument("--cache", type=Path, default=cache, help="folder of the cache")
        command.add_argument("--json", action="store_true", help="result as one JSON object")
    return parser


def _score(options: Any) -> dict[str, Any]:
    from accelerate import PartialState

    from vocagno.corpus import scan
    from vocagno.training.materials import cached_scores

    state = PartialState()
    store = cached_scores(
        options.teacher, scan(options.corpus, options.cache), options.cache, state.device,
        show_progress=state.is_main_process, folder=options.out,
    )  # fmt: skip
    size = sum(file.stat().st_size for file in store.folder.glob("*.arrow"))
    return {
        "store": str(store.folder),
        "documents": len(store),
        "tokens": store.num_tokens,
        "bytes_per_token": round(size / max(1, store.num_tokens), 3),
    }


def _prepare(options: Any) -> dict[str, Any]:
    from vocagno.corpus import scan
    from vocagno.training.loading import student_tokenizer
    from vocagno.training.materials import prepared_rows

    if options.seq_len < 1:
        raise InputError(f"--seq_len must be positive, got {options.seq_len}")
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    corpus = scan(options.corpus, options.cache)
    rows = prepared_rows(corpus, tokenizer, options.seq_len, options.cache, show_progress=True)
    return {
        "store": str(rows.folder),
        "documents": corpus.documents,
        "rows": len(rows),
        "tokens": rows.num_tokens,
    }

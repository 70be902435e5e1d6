"""`vocagno score` and `vocagno prepare`: what training needs, made ahead."""

from pathlib import Path
from typing import Any

from vocagno.errors import InputError


def add_score(parser: Any) -> None:
    """Runs a teacher over a corpus and stores one loss a token."""
    from vocagno.config import TeacherConfig

    _add_corpus(parser)
    parser.add_argument("--out", type=Path, help="folder of the store; default: in the cache")
    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores"})


def add_prepare(parser: Any) -> None:
    """Tokenizes a corpus for a student and packs it into rows, in the cache."""
    _add_corpus(parser)
    parser.add_argument(
        "--tokenizer", required=True, help="tokenizer.json(.gz), folder or hub name"
    )
    parser.add_argument("--eos", type=str, help="token after every document")
    parser.add_argument("--seq_len", type=int, default=2048, help="predicted tokens of a row")


def _add_corpus(parser: Any) -> None:
    from vocagno.config import DataConfig

    cache = DataConfig.__dataclass_fields__["cache"].default
    parser.add_argument("corpus", type=Path, help="JSON Lines with a `text`, or a folder of them")
    parser.add_argument("--config", action="config", help="YAML file with these options")
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the cache")


def score(options: Any) -> dict[str, Any]:
    """Makes the store, or finds it made."""
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


def prepare(options: Any) -> dict[str, Any]:
    """Makes the rows, or finds them made."""
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

"""The tokenizers and the corpus that a command measures."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vocagno.errors import InputError

TOKENIZER = "tokenizer.json(.gz), a folder with one, or a name that transformers knows"


def tracked(batches: Iterable[list[str]], doing: str) -> Iterator[list[str]]:
    """Shows on a terminal how many documents were counted."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.completed:,.0f} documents"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(doing, total=None)
        for texts in batches:
            yield texts
            bar.advance(task, len(texts))


def first_documents(batches: Iterable[list[str]], limit: int | None) -> Iterator[list[str]]:
    """The batches, up to so many documents in all; without a limit, all of them."""
    left = limit
    for texts in batches:
        yield texts[:left]
        if left is not None:
            left -= len(texts)
            if left <= 0:
                return


def short_names(names: Sequence[str], option: str) -> list[str]:
    """Names for tables and figures: `qwen2.5` for `tokenizers/qwen2.5.json.gz`.

    The file's name, or the folder's of a plain tokenizer.json; the names as they are where these
    do not tell them apart.
    Raises: InputError naming the option for a name that is given twice.
    """
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{option}: {name} is given twice; name each once")
    short = [_short(name) for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _short(name: str) -> str:
    path = Path(name)
    bare = path.name.removesuffix(".gz").removesuffix(".json")
    return (path.parent.name if bare == "tokenizer" else bare) or name

"""What the runs of a study need before the first of them."""

import json
from pathlib import Path

from vocagno.errors import ConfigError
from vocagno.files import file_digest, write_json
from vocagno.sharing import exclusively
from vocagno.study.plan import Plan

_LEARNED_FROM = "learned-from.json"


def make_assets(plan: Plan, train: str, out: Path) -> None:
    """Makes what is missing; several processes may call this at once.

    Args:
        train: the text that the runs train on.
    """
    if plan.assets is None:
        return
    with exclusively("assets", out):
        if plan.assets == "quickstart":
            _make_quickstart(plan.noise, out)
        else:
            assert plan.vocabulary is not None
            _make_tokenizer(train, plan.vocabulary, out / "tokenizer")


def _make_quickstart(noise: list[float], out: Path) -> None:
    """The quickstart's own, and its corpus again with other shares of junk."""
    from vocagno.quickstart import assets
    from vocagno.quickstart.problems import write_corpus

    assets.make_assets(assets.CONFIGS)
    for fraction in noise:
        folder = out / f"noise-{100 * fraction:02g}"
        if not folder.is_dir():
            unfinished = folder.with_suffix(".tmp")
            write_corpus(
                unfinished, train_documents=assets.TRAIN_DOCUMENTS, valid_documents=1,
                questions=1, noise_fraction=fraction,
            )  # fmt: skip
            unfinished.rename(folder)


def _make_tokenizer(train: str, vocabulary: int, folder: Path) -> None:
    """One of the family of the quickstart's student, learned from other text."""
    from vocagno.corpus import read_batches
    from vocagno.quickstart.tokenizers import save_student_tokenizer

    learned_from = {"text": file_digest(Path(train)), "vocabulary": vocabulary}
    if folder.is_dir():
        if json.loads((folder / _LEARNED_FROM).read_bytes()) != learned_from:
            raise ConfigError(
                f"vocabulary: the tokenizer in {folder} was learned from another text, or has "
                "another number of ids; choose another --out"
            )
        return
    texts = [text for batch in read_batches(Path(train)) for text in batch]
    unfinished = folder.with_suffix(".tmp")
    save_student_tokenizer(texts, unfinished, vocabulary)
    write_json(unfinished / _LEARNED_FROM, learned_from)
    unfinished.rename(folder)

"""What the runs of a study need before the first of them."""

from pathlib import Path

from vocagno.sharing import exclusively
from vocagno.study.plan import Plan


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
        folder = out / f"noise-{100 * fraction:02.0f}"
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

    if folder.is_dir():
        return
    texts = [text for batch in read_batches(Path(train)) for text in batch]
    unfinished = folder.with_suffix(".tmp")
    save_student_tokenizer(texts, unfinished, vocabulary)
    unfinished.rename(folder)

"""What the runs of a study need before the first of them."""

import json
from pathlib import Path

from vocagno.errors import ConfigError, InputError
from vocagno.paper.study.plan import OUT, Plan
from vocagno.system.files import file_digest, write_json
from vocagno.system.shared_work import exclusively

_LEARNED_FROM = "learned-from.json"
_QUESTIONS = 1000


def make_assets(plan: Plan, train: str, out: Path) -> None:
    """Makes what is missing; several processes may call this at once.

    Args:
        train: the text that tokenizers without a `text` are learned from.
    """
    if plan.assets is None and not plan.tokenizers:
        return
    with exclusively("assets", out):
        if plan.assets == "quickstart":
            _make_quickstart(plan, out)
        for name, tokenizer in plan.tokenizers.items():
            text = (tokenizer.text or train).replace(OUT, str(out))
            _make_tokenizer(name, text, tokenizer.vocabulary, out / name)


def _make_quickstart(plan: Plan, out: Path) -> None:
    """The quickstart's own, and its corpus again with other shares of junk."""
    from vocagno.quickstart import assets
    from vocagno.quickstart.problems import write_corpus

    assets.make_assets(assets.CONFIGS)
    count = plan.documents or assets.TRAIN_DOCUMENTS
    for fraction in plan.noise:
        folder = out / f"noise-{100 * fraction:02g}"
        if not folder.is_dir():
            unfinished = folder.with_suffix(".tmp")
            sizes = {"train_documents": count, "valid_documents": 1, "questions": _QUESTIONS}
            write_corpus(unfinished, **sizes, noise_fraction=fraction)
            unfinished.rename(folder)


def _make_tokenizer(name: str, text: str, vocabulary: int, folder: Path) -> None:
    """One of the family of the quickstart's student, learned from other text."""
    from vocagno.data.corpus import read_batches
    from vocagno.quickstart.tokenizers import save_student_tokenizer

    source = Path(text)
    if not source.is_file():
        raise InputError(f"tokenizers: {name}: {text}: no such file to learn from")
    learned_from = {"text": file_digest(source), "vocabulary": vocabulary}
    if folder.is_dir():
        if json.loads((folder / _LEARNED_FROM).read_bytes()) != learned_from:
            raise ConfigError(
                f"tokenizers: {name}: the tokenizer in {folder} was learned from another text, or "
                "has another number of ids; choose another --out"
            )
        return
    texts = [text for batch in read_batches(source) for text in batch]
    unfinished = folder.with_name(f"{name}.tmp")
    save_student_tokenizer(texts, unfinished, vocabulary)
    write_json(unfinished / _LEARNED_FROM, learned_from)
    unfinished.rename(folder)

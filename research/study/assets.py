"""The corpora and tokenizers that the runs of a study need before the first of them."""

import json
from pathlib import Path
from typing import Any

from research.study.plan import OUT, Plan
from vocagno.errors import ConfigError, InputError
from vocagno.system.files import file_digest, write_json
from vocagno.system.shared_work import exclusively

_LEARNED_FROM = "learned-from.json"
_MADE_FROM = "made-from.json"
_QUESTIONS = 1000
_SEED = 0


def make_assets(plan: Plan, train: str, out: Path) -> None:
    """Makes what is missing; several processes may call this at once. `train`: the text that
    tokenizers without a `text` are learned from."""
    if plan.assets is None and not plan.tokenizers:
        return
    with exclusively("assets", out):
        if plan.assets == "quickstart":
            _make_quickstart(plan, out)
        for name, tokenizer in plan.tokenizers.items():
            text = (tokenizer.text or train).replace(OUT, str(out))
            _make_tokenizer(name, text, tokenizer.vocabulary, out / name)


def _make_quickstart(plan: Plan, out: Path) -> None:
    """Makes the quickstart's inputs, and its corpus with other shares of junk."""
    from vocagno.quickstart import students

    for fraction in plan.noise:
        made_from = {
            "documents": plan.documents or students.TRAIN_DOCUMENTS,
            "noise": fraction,
            "questions": _QUESTIONS,
            "seed": _SEED,
        }
        _make_noisy(made_from, out / f"noise-{100 * fraction:02g}")
    students.make_assets()


def _make_noisy(made_from: dict[str, Any], folder: Path) -> None:
    from vocagno.quickstart.problems import write_corpus

    if folder.is_dir():
        before = _read_origin(folder / _MADE_FROM)
        for name, value in made_from.items():
            if before.get(name) != value:
                raise ConfigError(
                    f"noise: the corpus in {folder} was made with {name} {before.get(name)}, but "
                    f"the plan has {value}; choose another --out, or delete that folder and the "
                    "runs that read it"
                )
        return
    # Renamed when it is complete, so that a folder with the final name is never a part.
    unfinished = folder.with_name(f"{folder.name}.tmp")
    write_corpus(
        unfinished,
        seed=made_from["seed"],
        train_documents=made_from["documents"],
        valid_documents=1,
        questions=made_from["questions"],
        noise_fraction=made_from["noise"],
    )
    write_json(unfinished / _MADE_FROM, made_from)
    unfinished.rename(folder)


def _read_origin(path: Path) -> dict[str, Any]:
    """Reads what an asset was made from. Raises: InputError for a missing or damaged file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); delete {path.parent}") from error


def _make_tokenizer(name: str, text: str, vocabulary: int, folder: Path) -> None:
    """Makes a tokenizer of the family of the quickstart's student, learned from other text."""
    from vocagno.data.corpus import read_batches
    from vocagno.quickstart.tokenizers import save_student_tokenizer

    source = Path(text)
    if not source.is_file():
        raise InputError(f"tokenizers: {name}: {text}: no such file to learn from")
    learned_from = {"text": file_digest(source), "vocabulary": vocabulary}
    if folder.is_dir():
        if _read_origin(folder / _LEARNED_FROM) != learned_from:
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

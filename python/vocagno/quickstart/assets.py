"""Makes the inputs of the quickstart's students on this machine: texts, tokenizers, a teacher."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from vocagno.errors import InputError

CONFIGS = Path(__file__).parent
"""Folder with the configuration of each student (`guided.yaml`) and of the teacher."""
FOLDER = Path("runs/quickstart")
"""Output folder of the quickstart; the files in `CONFIGS` name it, too."""

TRAIN_DOCUMENTS = 2200
TEACHER_DOCUMENTS = 5000
VALID_DOCUMENTS = 150
QUESTIONS = 200
NOISE_FRACTION = 0.2
"""Share of unpredictable lines in the student's corpus."""

_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def make_assets() -> None:
    """Makes the missing inputs; several processes may call this at the same time."""
    from vocagno.system.shared_work import share

    tokenizers, teacher = FOLDER / "tokenizers", FOLDER / "teacher" / "final"
    share(["texts"], FOLDER, done=lambda _: tokenizers.is_dir(), make=lambda _: _make_texts())
    share(["teacher"], FOLDER, done=lambda _: teacher.is_dir(), make=lambda _: _train_teacher())


def _make_texts() -> None:
    """Writes the corpora and trains both tokenizers on them."""
    from vocagno.quickstart.problems import write_corpus
    from vocagno.quickstart.tokenizers import train_tokenizers

    print("writing the corpus, training two tokenizers", file=sys.stderr)
    paths = write_corpus(
        FOLDER / "corpus",
        train_documents=TRAIN_DOCUMENTS,
        valid_documents=VALID_DOCUMENTS,
        questions=QUESTIONS,
        noise_fraction=NOISE_FRACTION,
        teacher_documents=TEACHER_DOCUMENTS,
    )
    with paths["train"].open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    unfinished = FOLDER / "tokenizers.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    train_tokenizers(texts, unfinished)
    unfinished.rename(FOLDER / "tokenizers")


def _train_teacher() -> None:
    """Trains the teacher by the naive method, in one process without the caller's launcher."""
    print("training the teacher", file=sys.stderr)
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    command = [sys.executable, "-m", "vocagno", "train", "--config", str(CONFIGS / "teacher.yaml")]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise InputError(f"training the quickstart's teacher failed with status {status}")

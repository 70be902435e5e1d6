"""The project files that one training step executes, from rows and scores to the update.

    python .ci/step_files.py

A small run with the default rule and stored scores takes some steps on a CPU. Calls are traced
while a step is taken, and in the thread that collates its rows, from the fourth step on.
"""

import contextlib
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from unittest.mock import patch

# Resolved, because the names of executed files are: called as ../.ci/step_files.py it found none.
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "vocagno"
STEPS, WARM = 8, 4
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
sys.path[:0] = [str(ROOT / "tests" / "support")]

from corpora import write_corpus
from families import FAMILIES, TEXTS
from runs import train_here, write_config
from tiny_models import tiny_llama
from vocagno.training.loop import Training


def executed(folder: Path) -> set[str]:
    """Relative names of the files, of a run in a folder."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    def traced(*arguments: object) -> bool:
        if arguments[1] == WARM:
            files.clear()  # shards are open, and what is made once is made
        sys.setprofile(note)
        try:
            return step(*arguments)
        finally:
            sys.setprofile(None)

    for name in ("student", "teacher"):
        tokenizer = FAMILIES["llama" if name == "student" else "byte-level"]()
        tokenizer.save(str(folder / f"{name}.json"))
    tiny_llama(tokenizer.get_vocab_size(), seed=1).save_pretrained(folder / "model")
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    corpus = write_corpus(folder / "c.jsonl", TEXTS * 4)
    sections = {
        "train": {"log_every": STEPS, "checkpoint_every": STEPS, "steps": STEPS},
        "guidance": {"method": "vocagno"},
    }
    path = write_config(folder, corpus, folder, folder / "model", **sections)
    path.write_text(path.read_text().replace("  top_fraction: 0.4\n", ""))  # the default rule
    step = Training._step
    threading.setprofile(note)
    with patch.object(Training, "_step", traced):
        assert train_here(path) == 0, sys.stderr.getvalue()
    threading.setprofile(None)  # type: ignore[arg-type]
    return {str(Path(name).relative_to(PACKAGE)) for name in files if name.startswith(str(PACKAGE))}


if __name__ == "__main__":
    log = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        names = executed(Path(folder))
    if "training/step.py" not in names:  # none, or those of another folder: the bound would hold
        sys.exit(f"step_files: a step executes training/step.py, which is not among {names}")
    print("\n".join(sorted(names)))

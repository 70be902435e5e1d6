"""Checkpoints that are whole or not there, with their metrics, and the model's README."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import torch
import yaml
from huggingface_hub import ModelCard, ModelCardData

from vocagno import __version__
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.store.shards import StoreError
from vocagno.guidance.methods import method_of
from vocagno.system.files import atomic_file, flush_folder, write_json


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoints:
    """The folder `checkpoints` of a run; `step_N` holds the state after N optimizer steps."""

    folder: Path
    accelerator: accelerate.Accelerator
    keep: int
    run: str
    """The identity of the run (`configuration.run_identity`), which each checkpoint notes."""

    def clean(self) -> None:
        """Removes what a killed run had begun to write or to remove. One process calls it."""
        for folder in self.folder.glob("step_*.tmp"):
            shutil.rmtree(folder)

    def save(self, step: int) -> None:
        """Saves the state of all processes, and removes the oldest checkpoints beyond `keep`.

        The folder gets its name once everything in it is on disk.
        """
        accelerator = self.accelerator
        temporary = self.folder / f"step_{step}.tmp"
        if accelerator.is_main_process:
            temporary.mkdir(parents=True)
        accelerator.wait_for_everyone()
        with written_whole(temporary), _mute_tied_weights():
            accelerator.save_state(str(temporary))
            state = temporary / f"process_{accelerator.process_index}.json"
            write_json(state, self._process_state())
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            # The new one first: at any time a killed run has a whole checkpoint.
            publish_folder(temporary, self.folder / f"step_{step}")
            for old in sorted(saved_steps(self.folder))[: -self.keep]:
                discard_folder(self.folder / f"step_{old}")
        accelerator.wait_for_everyone()

    def load(self, step: int) -> None:
        """Restores the state after a step.

        Raises: StoreError if a file is missing or cannot be read, or if another run saved it;
            values that have changed since are not noticed.
        """
        folder = self.folder / f"step_{step}"
        self._check_run(folder)
        try:
            self.accelerator.load_state(str(folder))  # strict: all weights, and no others
            path = folder / f"process_{self.accelerator.process_index}.json"
            # None if saved by fewer processes; the order of the rows needs no random state.
            saved = json.loads(path.read_bytes()) if path.is_file() else None
        except Exception as error:  # safetensors and pickle raise others for a damaged file
            raise _not_restored(folder, error) from error
        # It brings back Accelerate's count of micro-batches, of which a step may have others now.
        self.accelerator.step = 0
        now = self._process_state()
        # Accelerate only logs a failure to restore random states.
        if saved and saved["num_processes"] == now["num_processes"] and saved != now:
            raise StoreError(f"{folder}: the random state could not be restored from it")

    def _check_run(self, folder: Path) -> None:
        """Compares the run that saved a checkpoint with this one, before anything is loaded.

        The weights of another run of the same architecture would load without a word, with its
        optimizer and its count of steps. Raises: StoreError if the runs differ.
        """
        first = folder / "process_0.json"  # of a process that every run has
        try:
            run = json.loads(first.read_bytes())["run"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _not_restored(folder, error) from error
        if run != self.run:
            raise StoreError(
                f"{folder} was saved by another run than the one in {self.folder.parent} (another "
                "configuration, text or teacher); remove it, or, to begin with its weights, give "
                "the folder `final` of that run as student.model"
            )

    def _process_state(self) -> dict[str, Any]:
        """The run, the number of processes and a hash of torch's random state, to compare after
        loading."""
        state = torch.get_rng_state().numpy().tobytes()
        return {
            "run": self.run,
            "num_processes": self.accelerator.num_processes,
            "random_state": hashlib.blake2b(state, digest_size=16).hexdigest(),
        }


def _not_restored(folder: Path, error: Exception) -> StoreError:
    fault = " ".join(f"{type(error).__name__}: {error}".split())
    return StoreError(
        f"{folder} could not be restored ({fault}); remove it to resume from an earlier one, or "
        "give another output"
    )


def latest_step(folder: Path) -> int:
    """The step of the last whole checkpoint in a folder; 0 if there is none."""
    return max(saved_steps(folder), default=0)


def saved_steps(folder: Path) -> list[int]:
    """The steps of all whole checkpoints in a folder, in no order."""
    # A checkpoint that is being written or removed, `step_N.tmp`, does not count.
    names = (path.name.removeprefix("step_") for path in folder.glob("step_*"))
    return [int(name) for name in names if name.isdecimal()]


@contextmanager
def _mute_tied_weights() -> Iterator[None]:
    """Mutes Accelerate's warning, at each checkpoint, that a tied head is saved only once."""

    def matters(record: logging.LogRecord) -> bool:
        return "Removed shared tensor" not in record.getMessage()

    log = logging.getLogger("accelerate.utils.other")
    log.addFilter(matters)
    try:
        yield
    finally:
        log.removeFilter(matters)


@contextmanager
def written_whole(folder: Path, final: str | None = None) -> Iterator[None]:
    """Removes a folder if the block that writes it fails.

    Args: final: the name that the folder is to get, for the message; default: its own without the
        last suffix.
    Raises: StoreError for the errors that torch's and safetensors' writers raise on a full disk.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(
            f"{final or folder.with_suffix('')} could not be written ({error}); what was saved "
            "before is as it was; make room and run again"
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def discard_folder(folder: Path) -> None:
    """Removes a folder. It loses its name first, so that no part of it passes for the whole."""
    doomed = folder.with_name(f"{folder.name}.old.tmp")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def publish_folder(temporary: Path, final: Path) -> None:
    """Gives a finished folder its name, after all its files have reached the disk."""
    os.umask(umask := os.umask(0))  # the only way to read it
    for path in temporary.rglob("*"):
        if path.is_file():
            # safetensors keeps its files to their owner. Some file systems know no modes.
            mode = path.stat().st_mode
            if (readable := mode | 0o666 & ~umask) != mode:
                with suppress(OSError):
                    path.chmod(readable)
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            flush_folder(path)
    flush_folder(temporary)
    temporary.rename(final)
    flush_folder(final.parent)


class MetricsLog:
    """The log `metrics.jsonl` of a run: one JSON object a line.

    Opening it removes the lines after the step that the run resumes from; all of them if it begins
    again.
    """

    def __init__(self, path: Path, resumed_step: int) -> None:
        self.path = path
        self._waiting: list[str] = []
        self.last_loss: float | None = None
        """The mean loss of the last window before that step; None if there is none."""
        self.evaluated_step: int = 0
        """The last step after which the benchmarks were run; 0 if they were not."""
        # A killed run may have logged steps beyond its last checkpoint: they are taken again, and
        # their lines would stand twice.
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        kept = [line for line in lines if resumed_step and _step_of(line) <= resumed_step]
        for entry in map(json.loads, kept):
            self.last_loss = entry.get("loss", self.last_loss)
            if "eval_seconds" in entry:
                self.evaluated_step = entry["step"]
        if lines:
            with atomic_file(path) as file:
                # A kill may have taken the end of the last line, which the next one would lengthen.
                file.writelines(line.removesuffix(b"\n") + b"\n" for line in kept)

    def write(self, entry: dict[str, Any]) -> None:
        """Appends one line and closes the file, so that a killed run keeps it.

        A line of step 0 waits for the next one: a run that fails in its first step has no log.
        """
        self._waiting.append(json.dumps(entry) + "\n")
        if entry["step"] == 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(self._waiting)
        self._waiting.clear()


def _step_of(line: bytes) -> float:
    """The step of a line; infinity for a line truncated by a kill, which belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def model_card(output: Path) -> str:
    """The README of a trained model, in Markdown with the metadata of the Hugging Face hub on top.

    It is made from the files in the folder of the run: `config.yaml`, `materials.json` (hashes) and
    `metrics.jsonl` (the last losses).
    """
    resolved = (output / "config.yaml").read_text("utf-8")
    materials = json.loads((output / "materials.json").read_bytes())
    last: dict[str, Any] = {}
    for line in (output / "metrics.jsonl").read_bytes().splitlines():
        last |= json.loads(line)
    options = yaml.safe_load(resolved)
    data, train = options["data"], options["train"]
    trained_on = f"`{data['train']}`"
    if isinstance(data["train"], dict):
        trained_on = ", ".join(f"`{name}` ({weight:g})" for name, weight in data["train"].items())
    student, teacher = options["student"]["model"], options["teacher"]
    sources = [teacher["model"] or teacher["scores"] or teacher["server"]]
    sources += [also["scores"] for also in teacher["also"] or []]
    # Scores may be several stores, one for each corpus.
    listed = [source if isinstance(source, list) else [source] for source in sources]
    teachers = [f"`{name}`" for names in listed for name in names]
    guidance = GuidanceConfig(**options["guidance"])
    method = method_of(guidance)
    # A hub takes only names of its models.
    base = None if student is None or Path(student).exists() else student
    metadata = ModelCardData(library_name="transformers", base_model=base, tags=method.tags)
    facts = {
        "method": f"`{guidance.method}`",
        "student": "new" if student is None else f"`{student}`",
        "teacher": ", ".join(teachers) if guidance.needs_teacher else "none",
        "trained on": trained_on,
        "steps": f"{train['steps']:,} of {train['global_batch']} rows of "
        f"{data['seq_len']:,} tokens",
        **{name: f"{last[key]:.4f}" for key, name in _MEASURED.items() if key in last},
    }
    body = _CARD.format(
        version=__version__,
        summary=method.summary,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        hashes=json.dumps(materials, indent=1),
        resolved=resolved.strip(),
    )
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}"))


_MEASURED = {"loss": "loss, the last window", "validation_loss": "held-out loss"}
"""The rows of the card for losses of `metrics.jsonl`, which are in nats a token."""

_CARD = """# Trained by vocagno {version}

{summary}

| | |
|---|---|
{facts}

Add the intended use, and the licences of the texts and the teacher.

## Inputs

Hashes of the texts, the tokenizers and the teacher's weights:

```json
{hashes}
```

## Configuration

```yaml
{resolved}
```

vocagno implements VocAgnoLM, ICML 2025, [arXiv 2503.19123](https://arxiv.org/abs/2503.19123).
"""

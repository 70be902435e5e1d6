"""Questions that a student is asked at its checkpoints, after training."""

from collections.abc import Iterable
from pathlib import Path

import torch

from research.study.wanted import checkpoint_weights
from vocagno.errors import InputError
from vocagno.quickstart.problems import exact_answer_accuracy, read_questions
from vocagno.training.checkpoint import discard_folder, saved_steps

_KEPT = 2
"""Checkpoints that stay, as `train.keep_checkpoints` by default."""


def answers_at_checkpoints(run: Path, questions: Path, steps: Iterable[int]) -> dict[int, float]:
    """The share of the questions, in [0, 1], answered exactly after each of some steps of a
    finished run that kept its checkpoints.

    Raises: InputError for a step without one.
    """
    from safetensors.torch import load_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run / "final", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    problems = read_questions(questions)
    student = torch.nn.ModuleDict({"model": model})  # as `GuidedStudent` names its weights
    found = {}
    for step in steps:
        weights = checkpoint_weights(run, step)
        if not weights.is_file():
            raise InputError(
                f"questions_every: {weights} does not exist: the run was begun without this "
                "option; delete its folder, or leave the option out"
            )
        load_model(student, weights)
        found[step] = exact_answer_accuracy(model, tokenizer, problems)
    return found


def discard_checkpoints(run: Path) -> None:
    """Removes the checkpoints of a finished run that were kept for the questions."""
    folder = run / "checkpoints"
    for step in sorted(saved_steps(folder))[:-_KEPT]:
        discard_folder(folder / f"step_{step}")

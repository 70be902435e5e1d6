"""How sure a trained model is of held-out text, the one temperature that suits it, and its answers
to questions at its checkpoints.

N: tokens, H: hidden size, C: tokens of a chunk, V: vocabulary.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from research.study.measured import Confidence
from research.study.wanted import checkpoint_weights
from vocagno.config.options import Config
from vocagno.data.prepare import prepare_rows, scan_with_progress
from vocagno.data.rows import RowStore
from vocagno.errors import InputError
from vocagno.guidance.batches import Collator
from vocagno.models.head import Head, chunks, hidden_states, language_head
from vocagno.models.loading import local_device, tokenizer_of_student
from vocagno.models.losses import IGNORED
from vocagno.models.weights import causal_model
from vocagno.quickstart.problems import exact_answer_accuracy, read_questions
from vocagno.training.checkpoint import discard_folder, saved_steps
from vocagno.training.configuration import kept_config

COLDEST, HOTTEST = 0.02, 50.0
"""Temperatures that are looked at. A model that is always right would suit none: the colder, the
better."""
_PRECISION = 1e-7
"""Nats that a further step could still gain."""
_KEPT = 2
"""Checkpoints that stay, as `train.keep_checkpoints` by default."""


def confidence_of_run(run: Path, wanted: int) -> Confidence:
    """How sure the final model of a training run is of the first `wanted` tokens of its
    `data.validation`, or of all, in float32.

    Raises: ConfigError for a run without held-out text, or with several.
    """
    config = kept_config(run)
    tokenizer = tokenizer_of_student(config.student)
    corpus = scan_with_progress(config.data.one_held_out, config.data.cache, show_progress=False)
    rows, _ = prepare_rows(
        corpus, tokenizer, config.data.seq_len, config.data.cache, show_progress=False
    )
    model = causal_model(str(run / "final"), "run", dtype=torch.float32).eval()
    model = model.to(local_device())
    head = language_head(model)
    states_NH, labels_N = _states(model, rows, config, wanted)
    return confidence_of_states(states_NH, head, labels_N, wanted)


@torch.inference_mode()
def confidence_of_states(
    states_NH: Tensor, head: Head, labels_N: Tensor, wanted: int
) -> Confidence:
    """How sure a model is, from its last hidden states and the tokens that follow them.

    The loss is a convex function of the inverse temperature, and Newton's method finds where it is
    smallest: four or five times the logits of all tokens, a chunk at a time.
    """
    first = _at(states_NH, head, labels_N, 1.0)
    inverse, tempered = _suiting(states_NH, head, labels_N, first)
    found = (first.loss, first.entropy, first.right, first.best, 1 / inverse, tempered)
    return Confidence(wanted, len(labels_N), *(round(value, 6) for value in found))


@torch.inference_mode()
def _states(
    model: torch.nn.Module, rows: RowStore, config: Config, wanted: int
) -> tuple[Tensor, Tensor]:
    """(N, H) states and (N,) labels of the first tokens that are predicted."""
    collator = Collator(None, config.guidance, config.data)
    states, labels, count = [], [], 0
    for first in range(0, len(rows), config.train.micro_batch):
        if count >= wanted:
            break
        stop = min(first + config.train.micro_batch, len(rows))
        tensors = collator([rows[number] for number in range(first, stop)]).to(local_device())
        where = {name: tensors.get(name) for name in ("attention_mask", "position_ids")}
        states_BTH = hidden_states(model, tensors["input_ids"], **where)
        is_predicted_BT = tensors["labels"] != IGNORED
        states.append(states_BTH[is_predicted_BT])
        labels.append(tensors["labels"][is_predicted_BT])
        count += len(labels[-1])
    return torch.cat(states)[:wanted], torch.cat(labels)[:wanted]


class _Means(NamedTuple):
    """Means over N tokens with the logits multiplied by the inverse temperature."""

    loss: float
    slope: float
    """Of the loss, by the inverse temperature."""
    curvature: float
    entropy: float
    right: float
    best: float
    """Probability of the most probable token."""


def _at(states_NH: Tensor, head: Head, labels_N: Tensor, inverse: float) -> _Means:
    head = head.for_chunks()
    sums = torch.zeros(len(_Means._fields), dtype=torch.float64, device=head.device)
    room = head.room_for(len(states_NH))
    for place in chunks(len(states_NH), head.vocabulary_size, head.device):
        logits_CV = head.logits(states_NH[place].to(head.device), room)
        labels_C1 = labels_N[place, None].to(head.device)
        top_C1, best_C1 = logits_CV.max(1, keepdim=True)
        logits_CV.sub_(top_C1)
        picked_C = logits_CV.gather(1, labels_C1)[:, 0]
        p_CV = (logits_CV * inverse).exp_()
        total_C1 = p_CV.sum(1, keepdim=True)
        p_CV.div_(total_C1)
        mean_C = torch.linalg.vecdot(p_CV, logits_CV)
        square_C = torch.linalg.vecdot(p_CV, logits_CV.square_())
        log_total_C = total_C1[:, 0].log()
        found = (
            log_total_C - inverse * picked_C,
            mean_C - picked_C,
            square_C - mean_C.square(),
            log_total_C - inverse * mean_C,
            (best_C1 == labels_C1).float(),
            1 / total_C1,
        )
        sums += torch.stack([values.double().sum() for values in found])
    return _Means(*(sums / len(labels_N)).tolist())


def _suiting(states_NH: Tensor, head: Head, labels_N: Tensor, found: _Means) -> tuple[float, float]:
    """The inverse temperature with the smallest loss, and that loss, from the means at 1. A step
    that would leave the interval in which the smallest loss is known to lie goes to its middle."""
    inverse, least, most = 1.0, 1 / HOTTEST, 1 / COLDEST
    while found.slope**2 > 2 * found.curvature * _PRECISION and most / least > 1 + 1e-6:
        if found.slope > 0:
            most = inverse
        else:
            least = inverse
        target = inverse - found.slope / found.curvature if found.curvature > 0 else math.inf
        inverse = target if least < target < most else math.sqrt(least * most)
        found = _at(states_NH, head, labels_N, inverse)
    return inverse, found.loss


def answers_at_checkpoints(run: Path, questions: Path, steps: Iterable[int]) -> dict[int, float]:
    """The share of the questions, in [0, 1], answered exactly after each of some steps of a
    finished run. Raises: InputError for a step without a checkpoint."""
    from safetensors.torch import load_model
    from transformers import AutoTokenizer

    model = causal_model(str(run / "final"), "run", dtype=torch.float32)
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

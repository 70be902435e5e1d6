"""Measures how sure a trained model is of held-out text, the temperature with its smallest loss,
and its answers to questions at its checkpoints.

N: tokens, H: hidden size, C: tokens of a chunk, V: vocabulary.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from research.study.measured import Confidence
from research.study.requirements import checkpoint_weights
from vocagno.config.options import Config
from vocagno.data.prepare import prepare_rows, scan_with_progress
from vocagno.data.rows import RowStore
from vocagno.errors import InputError
from vocagno.guidance.collator import Collator
from vocagno.models.head import Head, chunks, hidden_states, language_head
from vocagno.models.loading import local_device
from vocagno.models.losses import IGNORED
from vocagno.models.own_tokenizers import tokenizer_of_student
from vocagno.models.weights import causal_model
from vocagno.quickstart.problems import exact_answer_accuracy, read_questions
from vocagno.training.checkpoint import discard_folder, saved_steps
from vocagno.training.configuration import kept_config

COLDEST, HOTTEST = 0.02, 50.0
"""The range of temperatures. It needs an end, as the loss of a model that is always right falls
with every lower temperature."""
_PRECISION = 1e-7
"""The search ends when a further step would gain less than this, in nats."""
_KEEP_LAST = 2
"""The number of checkpoints that stay: the default of `train.keep_checkpoints`."""


def confidence_of_run(run: Path, num_tokens: int) -> Confidence:
    """Measures how sure the final model of a run is of its `data.validation`, in float32.

    Only the first `num_tokens` tokens are read, or all if there are fewer.

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
    states_NH, labels_N = _states(model, rows, config, num_tokens)
    return confidence_of_states(states_NH, head, labels_N, num_tokens)


@torch.inference_mode()
def confidence_of_states(
    states_NH: Tensor, head: Head, labels_N: Tensor, num_tokens: int
) -> Confidence:
    """Measures how sure a model is, from its last hidden states and the tokens that follow them.

    The loss is a convex function of the inverse temperature, and Newton's method finds where it is
    smallest: four or five times the logits of all tokens, a chunk at a time.
    """
    first = _means_at(states_NH, head, labels_N, 1.0)
    inverse, tempered = _fit_temperature(states_NH, head, labels_N, first)
    figures = (first.loss, first.entropy, first.right, first.best, 1 / inverse, tempered)
    return Confidence(num_tokens, len(labels_N), *(round(value, 6) for value in figures))


@torch.inference_mode()
def _states(
    model: torch.nn.Module, rows: RowStore, config: Config, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Computes (N, H) states and (N,) labels of the first tokens that are predicted."""
    collator = Collator(None, config.guidance, config.data)
    states, labels, count = [], [], 0
    for first in range(0, len(rows), config.train.micro_batch):
        if count >= num_tokens:
            break
        stop = min(first + config.train.micro_batch, len(rows))
        batch = collator([rows[number] for number in range(first, stop)]).to(local_device())
        inputs = batch.inputs()
        where = {name: inputs.get(name) for name in ("attention_mask", "position_ids")}
        states_BTH = hidden_states(model, inputs["input_ids"], **where)
        is_predicted_BT = inputs["labels"] != IGNORED
        states.append(states_BTH[is_predicted_BT])
        labels.append(inputs["labels"][is_predicted_BT])
        count += len(labels[-1])
    return torch.cat(states)[:num_tokens], torch.cat(labels)[:num_tokens]


class _Means(NamedTuple):
    """Means over N tokens with the logits multiplied by the inverse temperature."""

    loss: float
    slope: float
    """The derivative of the loss by the inverse temperature."""
    curvature: float
    entropy: float
    right: float
    best: float
    """Probability of the most probable token."""


def _means_at(states_NH: Tensor, head: Head, labels_N: Tensor, inverse: float) -> _Means:
    """Computes the means at an inverse temperature, a chunk of logits at a time."""
    head = head.for_chunks()
    sums = torch.zeros(len(_Means._fields), dtype=torch.float64, device=head.device)
    room = head.room_for(len(states_NH))
    for chunk in chunks(len(states_NH), head.vocabulary_size, head.device):
        logits_CV = head.logits(states_NH[chunk].to(head.device), room)
        labels_C1 = labels_N[chunk, None].to(head.device)
        top_C1, best_C1 = logits_CV.max(1, keepdim=True)
        logits_CV.sub_(top_C1)
        picked_C = logits_CV.gather(1, labels_C1)[:, 0]
        p_CV = (logits_CV * inverse).exp_()
        total_C1 = p_CV.sum(1, keepdim=True)
        p_CV.div_(total_C1)
        mean_C = torch.linalg.vecdot(p_CV, logits_CV)
        square_C = torch.linalg.vecdot(p_CV, logits_CV.square_())
        log_total_C = total_C1[:, 0].log()
        columns = (
            log_total_C - inverse * picked_C,
            mean_C - picked_C,
            square_C - mean_C.square(),
            log_total_C - inverse * mean_C,
            (best_C1 == labels_C1).float(),
            1 / total_C1,
        )
        sums += torch.stack([values.double().sum() for values in columns])
    return _Means(*(sums / len(labels_N)).tolist())


def _fit_temperature(
    states_NH: Tensor, head: Head, labels_N: Tensor, means: _Means
) -> tuple[float, float]:
    """Finds the inverse temperature with the smallest loss by Newton's method, from the means at 1.

    A step that would leave the interval in which the smallest loss lies goes to its middle.
    Returns: the inverse temperature, and its loss.
    """
    inverse, least, most = 1.0, 1 / HOTTEST, 1 / COLDEST
    while means.slope**2 > 2 * means.curvature * _PRECISION and most / least > 1 + 1e-6:
        if means.slope > 0:
            most = inverse
        else:
            least = inverse
        target = inverse - means.slope / means.curvature if means.curvature > 0 else math.inf
        inverse = target if least < target < most else math.sqrt(least * most)
        means = _means_at(states_NH, head, labels_N, inverse)
    return inverse, means.loss


def answers_at_checkpoints(run: Path, questions: Path, steps: Iterable[int]) -> dict[int, float]:
    """Asks the questions at checkpoints of a finished run. Returns shares of exact answers by step.

    Raises: InputError for a step without a checkpoint.
    """
    from safetensors.torch import load_model
    from transformers import AutoTokenizer

    model = causal_model(str(run / "final"), "run", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    problems = read_questions(questions)
    student = torch.nn.ModuleDict({"model": model})  # as `GuidedStudent` names its weights
    answers = {}
    for step in steps:
        weights = checkpoint_weights(run, step)
        if not weights.is_file():
            raise InputError(
                f"questions_every: {weights} does not exist: the run was begun without this "
                "option; delete its folder, or omit the option"
            )
        load_model(student, weights)
        answers[step] = exact_answer_accuracy(model, tokenizer, problems)
    return answers


def discard_checkpoints(run: Path) -> None:
    """Removes the checkpoints of a finished run that were kept for the questions."""
    folder = run / "checkpoints"
    for step in sorted(saved_steps(folder))[:-_KEEP_LAST]:
        discard_folder(folder / f"step_{step}")

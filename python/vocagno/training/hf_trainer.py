"""Guidance inside `transformers.Trainer`: collators and a subclass, nothing of our loop."""

import inspect
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import Trainer

from vocagno.config.data import DataConfig
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.train import HeadLoss
from vocagno.data.rows import Row
from vocagno.guidance.collator import Collator
from vocagno.guidance.columns import PADDING, padded
from vocagno.guidance.methods import method_of, method_of_other_loops
from vocagno.guidance.methods.base import Method, StudentOutput
from vocagno.guidance.thresholded import chunk_ends_of
from vocagno.models.adapters import without_wrapper
from vocagno.models.causal import IGNORED, causal_shift
from vocagno.teacher.matched_scores import MatchedScores
from vocagno.training.student import GuidedForward


class GuidedCollator:
    """Rows of a `RowStore` to what `GuidedTrainer` takes."""

    def __init__(
        self,
        scores: MatchedScores | None,
        guidance: GuidanceConfig,
        *,
        seq_len: int,
        line_ends: NDArray[np.bool_] | None = None,
    ) -> None:
        """`scores` of the documents of the rows; None to evaluate, or for `method: cpt`. `seq_len`
        is that of the rows. `line_ends`: for `window: line`, `TokenSpans.line_ends`
        of the student."""
        data = DataConfig(train="", seq_len=seq_len)
        self._collator = Collator(scores, guidance, data, line_ends)
        self._normalize = guidance.normalize

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """input_ids, labels (already shifted: `labels[:, i]` follows `input_ids[:, i]`) and
        teacher_loss, (B, T) each; what else the guidance needs; and as integers how many tokens
        will be kept (at most, where the losses decide), and counted."""
        batch = self._collator(list(rows))
        counts = batch.counts
        num_counted = counts.predicted if self._normalize == "tokens" else counts.kept
        return batch.inputs() | {"num_kept": counts.kept, "num_counted": num_counted}


class DataCollatorWithTeacherLoss:
    """Pads the columns of `add_teacher_loss` to what `GuidedTrainer` takes."""

    def __init__(
        self, guidance: GuidanceConfig | None = None, *, pad_to_multiple_of: int | None = None
    ) -> None:
        """`guidance`: that of the columns. `pad_to_multiple_of`: tokens of a padded example."""
        self._guidance: GuidanceConfig = guidance or GuidanceConfig()
        self._method: Method = method_of(self._guidance)
        self._multiple: int = pad_to_multiple_of or 1

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As `GuidedCollator`, of examples that are not packed.

        Raises: ValueError for examples without the columns that the guidance needs.
        """
        needed = {"input_ids", "labels", "teacher_loss"}
        needed |= {"groups"} if self._guidance.unit == "group" else set()
        needed |= {"lines"} if self._guidance.window == "line" else set()
        if missing := sorted(needed - examples[0].keys()):
            raise ValueError(
                f"examples without {', '.join(missing)}: make the columns by add_teacher_loss with "
                "this guidance, and let the trainer keep them (remove_unused_columns=False)"
            )
        # One place is gone after the shift.
        longest = max(2, *(len(example["input_ids"]) for example in examples)) - 1
        width = -(-longest // self._multiple) * self._multiple + 1
        tensors: dict[str, Any] = {}
        for name in PADDING:
            if name in examples[0]:
                inputs, labels = causal_shift(padded(examples, name, width))
                tensors[name] = (inputs if name == "input_ids" else labels).contiguous()
        if "teacher_sums" in examples[0]:
            sums = np.array([example["teacher_sums"] for example in examples])
            tensors["teacher_sums"] = torch.from_numpy(sums)
        roles = self._method.roles(tensors["teacher_loss"], tensors["labels"])
        num_kept = self._method.most_kept(*roles, tensors)
        num_predicted = int((tensors["labels"] != IGNORED).sum())
        if (ends := chunk_ends_of(tensors, self._guidance)) is not None:
            tensors["chunk_ends"] = ends
        num_counted = num_predicted if self._guidance.normalize == "tokens" else num_kept
        return tensors | {"num_kept": num_kept, "num_counted": num_counted}


class GuidedTrainer(Trainer):  # type: ignore[misc]  # transformers is not typed
    """A Trainer that trains on the tokens that the teacher chooses.

    Another trainer becomes guided by both as bases: `class Guided(GuidedTrainer, SFTTrainer)`.

    The model stays what it is: it is saved, loaded, copied and generates as ever. Given a
    `teacher_loss`, its forward pass gives a `StudentOutput` instead of logits. A step's loss is
    divided by one count over all its micro-batches and processes.
    """

    loss_is_scaled_for_ga: bool | None = True
    _signature_columns: Any

    def __init__(
        self,
        model: Any,
        *arguments: Any,
        guidance: GuidanceConfig,
        head_loss_by: HeadLoss = "auto",
        **options: Any,
    ) -> None:
        """Args: as the trainer, but without `model_init`; with a `GuidedCollator` or a
            `DataCollatorWithTeacherLoss` as `data_collator`.

        Raises: UnsupportedModelError if the logits of the model are not understood; ValueError for
            `guidance.scope: step`, which needs the counts of all processes, for one process with
            several GPUs, for Apple's GPU, for a stream that one process reads for all, and for
            options of a loss or of logits, which the trainer would ignore.
        """
        if guidance.scope == "step":
            raise ValueError("guidance.scope: step is for our own loop; use sequence")
        method_of_other_loops(guidance)
        super().__init__(model, *arguments, **options)
        _check_arguments(self.args)
        for name, why in _UNSUPPORTED.items():
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: not supported by a guided trainer; {why}")
        validation = self.eval_dataset
        several = validation.values() if isinstance(validation, dict) else [validation]
        for dataset in (self.train_dataset, *several):
            self._check_stream(dataset)
        self.model.forward = _guided_forward(self.model, guidance, head_loss_by)

    def _check_stream(self, dataset: Any) -> None:
        """Rejects batches that Accelerate would join and cut: their counts are of one batch."""
        dispatch = self.accelerator.dispatch_batches
        is_dispatched = isinstance(dataset, IterableDataset) if dispatch is None else dispatch
        if is_dispatched and self.accelerator.num_processes > 1:
            raise ValueError(
                "one process would read the batches of all: set accelerator_config="
                '{"dispatch_batches": False} in the arguments; Accelerate then divides the stream'
            )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As the trainer's, of a dataset that is given later, too."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            self._check_stream(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        names = [*self._signature_columns, *PADDING, "teacher_sums"]
        self._signature_columns = list(dict.fromkeys(names))

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], int]:
        """The micro-batches of a step, and the count that its loss is divided by."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        count = sum(batch.pop("num_counted") for batch in batches)
        return batches, int(self.accelerator.reduce(torch.tensor(count, device=device)))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a micro-batch, scaled so that the gradients of all add up to the step's; in
        evaluation the mean over the predicted tokens of a batch (the Trainer averages batches)."""
        inputs.pop("num_counted", None)
        output: StudentOutput = model(**inputs)
        if model.training:
            loss = output.loss * (self.accelerator.num_processes / max(1, int(num_items_in_batch)))
        else:
            loss = output.nll_BT.sum() / (inputs["labels"] >= 0).sum().clamp_min(1)
        return (loss, (loss,)) if return_outputs else loss

    def predict(self, *_: Any, **__: Any) -> Any:
        """Raises: ValueError, because there are no logits to return."""
        raise ValueError(
            "predict: a guided trainer computes no logits; use evaluate, or transformers.Trainer "
            "with the same model"
        )


_UNSUPPORTED = {
    "model_init": "give the model",
    "compute_metrics": "it computes no logits",
    "preprocess_logits_for_metrics": "it computes no logits",
    "compute_loss_func": "the loss is that of the guidance",
}


def _check_arguments(arguments: Any) -> None:
    """Raises: ValueError for arguments that a guided trainer would ignore, for several GPUs, and
    for Apple's."""
    if arguments.device.type == "mps":
        raise ValueError("Apple's GPU has no float64, which sums of losses need: set use_cpu=True")
    if arguments.n_gpu > 1:
        raise ValueError(
            f"one process sees {arguments.n_gpu} GPUs, and nn.DataParallel is not supported: "
            "start by `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one of them"
        )
    if arguments.label_smoothing_factor:
        raise ValueError("label_smoothing_factor: the loss is that of the guidance; set it to 0")
    usual = getattr(type(arguments), "loss_type", None)  # the default, of TRL's arguments
    if usual is not None and arguments.loss_type != usual:
        raise ValueError(
            f"loss_type {arguments.loss_type}: the loss is that of the guidance; leave it at "
            f"{usual}"
        )


def _guided_forward(model: Any, guidance: GuidanceConfig, head_loss_by: HeadLoss) -> MethodType:
    """The forward pass of a model, guided where a teacher's loss is given.

    Bound to the model, and it refers to no other, so that a copy of the model gets its own.
    """
    guided = GuidedForward(without_wrapper(model), guidance, head_loss_by)
    usual = model.forward
    function = getattr(usual, "__func__", None)  # None where another library has put a closure

    def forward(self: Any, *inputs: Any, teacher_loss: Tensor | None = None, **named: Any) -> Any:
        if teacher_loss is not None:
            return guided(without_wrapper(self), teacher_loss=teacher_loss, **named)
        return function(self, *inputs, **named) if function else usual(*inputs, **named)

    # `generate` gives only the inputs that it finds here.
    asked = inspect.signature(usual)
    inputs = [value for name, value in asked.parameters.items() if name != "self"]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = asked.replace(parameters=[own, *inputs])  # type: ignore[attr-defined]
    return MethodType(forward, model)

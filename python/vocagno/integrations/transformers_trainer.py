"""Guidance inside `transformers.Trainer`: a subclass that keeps its loop. `collators` makes its
batches."""

import inspect
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import Trainer

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, InputError
from vocagno.guidance.batch import (
    OF_TOKENS,
    BatchFacts,
    TokenCounts,
    check_coverage,
    check_guidance,
)
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods import method_of_other_loops
from vocagno.guidance.methods.base import StudentOutput
from vocagno.integrations.collators import SHIFTED, GuidedCollator
from vocagno.integrations.columns import OF_EXAMPLES
from vocagno.models.head import without_wrapper
from vocagno.models.weights import largest_input, rotary_settings
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.monitoring import Warnings, token_entry
from vocagno.training.run_log import Entry
from vocagno.training.step import GuidedForward


class GuidedTrainer(Trainer):  # type: ignore[misc]  # transformers is not typed
    """A Trainer that trains on the tokens that the teacher chooses.

    Another trainer becomes guided by both as bases: `class Guided(GuidedTrainer, SFTTrainer)`.

    The model stays what it is: it is saved, loaded and copied, and generates, without a change. If
    it gets a `teacher_loss`, its forward pass returns a `StudentOutput` instead of logits. A step's
    loss is divided by one count over all its micro-batches and processes. With the loss of training
    the trainer logs the shares of the tokens that are kept and that the teacher covers, and the
    threshold, and warns if they are unusual (`training.monitoring.Warnings`).
    """

    _signature_columns: Any
    data_collator: Any

    def __init__(
        self,
        model: Any,
        *arguments: Any,
        guidance: GuidanceConfig,
        targets: BucketTargets | None = None,
        **options: Any,
    ) -> None:
        """Guides the forward pass of the model. Warns if weights that train are 16-bit.

        Args:
            model, arguments, options: the arguments of the trainer, without `model_init`;
                `data_collator` is a `GuidedCollator` or a `DataCollatorWithTeacherLoss`.
            targets: the targets of the collator, for `distill`.
        Raises: UnsupportedModelError if the logits of the model are not understood; ValueError for
            one process with several GPUs, for Apple's GPU, for a stream that one process reads for
            all, and for options of a loss or of logits, which the trainer would ignore.
        """
        self._method = method_of_other_loops(guidance, targets)
        check_targets(guidance, targets)
        super().__init__(model, *arguments, **options)
        # The loss is divided by the count of a whole step, and nothing else may divide it by the
        # accumulation. Before transformers 5.19 the second line says so, and 5.5.3 needs the third,
        # too. As an attribute of the class the first would make TRL replace the loss function.
        self.loss_is_scaled_for_ga: bool | None = True
        self.model_accepts_loss_kwargs = True
        self.accelerator.gradient_accumulation_steps = 1
        _check_arguments(self.args)
        self._sums = torch.zeros(
            len(LossSums._fields), dtype=torch.float64, device=self.args.device
        )
        self._counts: TokenCounts | None = None  # since the last log, as the sums
        self._has_seen_scores = False
        self._warnings: Warnings | None = None  # of the run, whose length is known once it trains
        for name, reason in _UNSUPPORTED.items():
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: not supported by a guided trainer; {reason}")
        validation = self.eval_dataset
        held_out = validation.values() if isinstance(validation, dict) else [validation]
        for dataset in (self.train_dataset, *held_out):
            self._check_stream(dataset)
        if isinstance(self.data_collator, GuidedCollator):
            self.data_collator.check_rows(self.train_dataset)
        self._warn_of_short_weights()
        warning = self._method.guidance.warning
        if warning and self.is_world_process_zero():
            warnings.warn(warning, stacklevel=2)
        # Weights of several types may need autocast to be multiplied (axolotl's norms are float32).
        types = {weight.dtype for weight in self.model.parameters() if weight.is_floating_point()}
        with self.accelerator.autocast() if len(types) > 1 else nullcontext():
            self.model.forward = _guided_forward(self.model, guidance, targets)

    def _warn_of_short_weights(self) -> None:
        """Warns if weights that train are 16-bit: small steps are lost to their rounding."""
        is_sharded = self.is_fsdp_enabled and self.accelerator.mixed_precision != "no"
        if is_sharded or self.is_deepspeed_enabled:
            return  # these keep float32 weights themselves
        types = {str(weight.dtype) for weight in self.model.parameters() if weight.requires_grad}
        if short := types & {"torch.bfloat16", "torch.float16"}:
            warnings.warn(
                f"model: weights that train are {' and '.join(sorted(short))}: updates smaller "
                "than their rounding are lost. Load it with dtype=torch.float32; bf16=True in the "
                "arguments is mixed precision",
                stacklevel=3,
            )

    def _check_stream(self, dataset: Any) -> None:
        """Refuses a stream whose batches Accelerate would join and divide among the processes.

        The counts of a batch are those of its own tokens. Raises: ValueError.
        """
        dispatch = self.accelerator.dispatch_batches
        # None is Accelerate's default: it dispatches streams, and nothing else.
        is_dispatched = isinstance(dataset, IterableDataset) if dispatch is None else dispatch
        if is_dispatched and self.accelerator.num_processes > 1:
            raise ValueError(
                "one process would read the batches of all: set accelerator_config="
                '{"dispatch_batches": False} in the arguments; Accelerate then divides the stream'
            )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The trainer's data loader; a dataset that was unknown until now is checked first."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            self._check_stream(eval_dataset)
        collator = self.data_collator
        if isinstance(collator, GuidedCollator):
            # It would look held-out rows up by the numbers of the documents that train. Evaluation
            # has the loss of all tokens, whatever the teacher says.
            self.data_collator = collator.without_scores()
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = collator

    def _set_signature_columns_if_needed(self) -> None:
        """Keeps the guided columns, which no argument of the model's forward pass names."""
        super()._set_signature_columns_if_needed()
        # `remove_unused_columns`, which is on by default, would take them out of the data set.
        names = [*self._signature_columns, *OF_TOKENS, *OF_EXAMPLES]
        self._signature_columns = list(dict.fromkeys(names))

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """The micro-batches of a step, and the count by which its loss is divided, on the device.

        Raises: ConfigError for batches that were made for other guidance.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = [self._facts(batch).counts for batch in batches]
        is_mean_of_all = self._method.guidance.normalize == "tokens"
        # Counted by the collators, on the host: the sum needs no value from the device.
        count = sum(counted.predicted if is_mean_of_all else counted.kept for counted in counts)
        return batches, self.accelerator.reduce(torch.full((), count, device=device))

    def _facts(self, batch: Mapping[str, Any]) -> BatchFacts:
        """The facts that a collator put into a batch, after checking that they fit the trainer.

        Raises: InputError for a batch without them; ConfigError for one made for other guidance or
            with another tokenizer.
        """
        facts: BatchFacts | None = batch.get("facts")
        if facts is None:
            raise InputError(
                "a batch without `facts`: give a GuidedCollator or a DataCollatorWithTeacherLoss "
                "as data_collator, and pass on all that it returns"
            )
        check_guidance(facts.guidance, self._method.guidance, "collator and trainer")
        self._check_tokenizer(facts)
        return facts

    def _check_tokenizer(self, facts: BatchFacts) -> None:
        """Raises: ConfigError for a batch whose ids are of another tokenizer than the trainer's."""
        if facts.student and self._student and facts.student != self._student:
            raise ConfigError(
                "processing_class: is not the student's tokenizer that the columns were made with; "
                "make them with this one, or load that one"
            )

    @cached_property
    def _student(self) -> str | None:
        """The fingerprint of the tokenizer, if the trainer has one."""
        tokenizer = self.processing_class
        return None if tokenizer is None else TokenSpans(tokenizer).fingerprint

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a micro-batch, scaled so that the gradients of all add up to the step's.

        In evaluation it is the mean over the predicted tokens of a batch; the Trainer averages the
        batches.

        Raises: ConfigError for a batch with ids of another tokenizer; InputError for one that is
            longer than the model reads.
        """
        facts: BatchFacts | None = inputs.pop("facts", None)
        inputs.pop(SHIFTED, None)
        if facts is not None and not model.training:  # `_facts` has looked at those of training
            self._check_tokenizer(facts)
        self._check_positions(inputs["input_ids"].shape[1])
        output: StudentOutput = model(**inputs)
        if model.training:
            assert facts is not None  # `get_batch_samples` has seen it
            self._counts = facts.counts.plus(self._counts or TokenCounts())
            self._sums += output.sums.to(self._sums.device)
            # DDP averages gradients over the processes; the loss is divided by a count of all of
            # them already.
            scale = self.accelerator.num_processes / num_items_in_batch.clamp_min(1)
            loss = output.loss * scale.to(output.loss.device)
        else:
            loss = output.nll_BT.sum() / (inputs["labels"] >= 0).sum().clamp_min(1)
        return (loss, (loss,)) if return_outputs else loss

    def _check_positions(self, length: int) -> None:
        """Raises: InputError for a batch beyond the positions of the model, which would give it
        wrong losses without an error."""
        config = without_wrapper(self.model).config
        longest, rope = largest_input(config), rotary_settings(config)
        # Dynamic scaling is for longer rows; HunYuan calls a fixed one (`alpha`) so, too.
        is_scaled = rope.get("rope_type") == "dynamic" and not rope.get("alpha")
        if longest is not None and length > longest and not is_scaled:
            raise InputError(
                f"a batch of {length:,} tokens, but the model reads at most {longest:,} "
                "(max_position_embeddings); make shorter rows, or set max_length"
            )

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Logs the values of the trainer; with a loss of training, also those of its tokens.

        The tokens are those of all processes since the last time.

        Raises: GuidanceError if the teacher covers too few tokens (`check_coverage`), after the
            logging.
        """
        counts = None
        if self._counts is not None and not logs.keys().isdisjoint(("loss", "train_loss")):
            # As float64 the counts travel with the sums; it holds whole numbers up to 2**53.
            local = torch.tensor(self._counts, dtype=torch.float64, device=self._sums.device)
            # One exchange between processes for all figures, and only when something is logged.
            totals = self.accelerator.reduce(torch.cat([self._sums, local])).tolist()
            sums = LossSums(*totals[: -len(local)])
            counts = TokenCounts(*map(int, totals[-len(local) :]))
            self._counts = None
            self._sums.zero_()
            entry = token_entry(f"step {self.state.global_step}", self._method, sums, counts)
            if counts.missing:
                entry["missing"] = counts.missing / counts.predicted
            self._warnings = self._warnings or Warnings(self._method.guidance, self.state.max_steps)
            line = Entry.of(entry | {"step": self.state.global_step})
            for words in self._warnings.look(line) if self.is_world_process_zero() else ():
                warnings.warn(words, stacklevel=2)
            for name in ("loss", "tokens", "unmapped"):  # the loss is that of all tokens
                entry.pop(name, None)
            logs |= entry
        super().log(logs, *arguments, **named)
        if counts is not None:
            if self._has_seen_scores:  # a few steps may be of a document without scores
                counts = counts._replace(missing=0)
            self._has_seen_scores |= counts.with_text > 0
            check_coverage(counts, self._method.guidance, f"step {self.state.global_step}")

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
"""The attributes of a trainer that must be None, each with the reason."""


def _check_arguments(arguments: Any) -> None:
    """Checks the arguments of the trainer.

    Raises: ValueError for arguments that a guided trainer would ignore, for several GPUs in one
        process, and for Apple's GPU.
    """
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


def _guided_forward(
    model: Any, guidance: GuidanceConfig, targets: BucketTargets | None
) -> MethodType:
    """Makes a forward pass of a model that is guided if it gets a teacher's loss.

    It is bound to the model and refers to no other, so that a copy of the model gets its own.
    """
    # It is made here for its checks as well: a head that is not understood is refused before
    # training.
    guided = GuidedForward(without_wrapper(model), guidance, targets)
    usual = model.forward
    function = getattr(usual, "__func__", None)  # None if another library has put a closure

    def forward(self: Any, *inputs: Any, teacher_loss: Tensor | None = None, **named: Any) -> Any:
        if teacher_loss is not None:
            return guided(without_wrapper(self), teacher_loss=teacher_loss, **named)
        return function(self, *inputs, **named) if function else usual(*inputs, **named)

    # `generate` gives only the inputs that it finds here.
    signature = inspect.signature(usual)
    inputs = [value for name, value in signature.parameters.items() if name != "self"]
    of_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = signature.replace(parameters=[of_self, *inputs])
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return MethodType(forward, model)

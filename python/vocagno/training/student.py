"""The student with its loss inside its forward pass, as wrappers that shard weights need it.

B: rows, T: tokens of a row.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from vocagno.config.guidance import GuidanceConfig, as_naive
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method, StudentOutput
from vocagno.guidance.tensors import GuidanceTensors, StudentSide
from vocagno.models.head import (
    Head,
    base_of,
    head_of,
    hidden_states,
    language_head,
    own_head_of,
    without_wrapper,
)
from vocagno.models.own_head import OwnHead


class GuidedForward:
    """The guided forward pass of a causal language model. It holds none of its weights, so it
    serves copies of the model, too."""

    def __init__(self, model: Any, guidance: GuidanceConfig) -> None:
        """Args: as `GuidedStudent`, but for the wrapper of PEFT."""
        head = language_head(model)
        if getattr(model.config.get_text_config(), "output_router_logits", False):
            warnings.warn(
                f"{type(model).__name__}: `output_router_logits` asks for a load-balancing loss of "
                "the experts, which guided training does not add; set it to false in its "
                "configuration",
                stacklevel=3,
            )
        # Only sizes: the weights are looked up in each pass, because wrappers replace them.
        sizes = head.vocabulary_size, head.hidden_size
        self._own_head: tuple[int, int] | None = sizes if isinstance(head, OwnHead) else None
        self.method: Method = method_of(guidance)
        self._naive: Method = method_of(as_naive(guidance))

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        labels: Tensor,
        teacher_loss: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **given: Any,
    ) -> StudentOutput:
        """Loss and metrics.

        Args: (B, T) each, as the collator gives them; `labels[:, i]` follows `input_ids[:, i]`.
            Without `teacher_loss` all tokens are kept, and none is ranked.
            `given`: the other fields of `GuidanceTensors`.
        """
        method = self.method
        if teacher_loss is None:
            method = self._naive
            teacher_loss = torch.full(labels.shape, torch.nan, device=labels.device)
        states_BTH = hidden_states(
            model, input_ids, attention_mask=attention_mask, position_ids=position_ids
        )
        student = StudentSide(states_BTH, self._head(model), labels)
        return method.loss(student, GuidanceTensors(teacher_loss=teacher_loss, **given))

    def _head(self, model: Any) -> Head:
        if self._own_head is None:
            return head_of(model)
        return own_head_of(model, *self._own_head)


class GuidedStudent(nn.Module):
    """A causal language model that returns the sum of the losses it is trained on."""

    def __init__(self, model: Any, guidance: GuidanceConfig) -> None:
        """Args: model: of transformers; a `PeftModel` trains its adapters.

        Raises: UnsupportedModelError if the logits of the model are not understood, or as
            `without_wrapper`.
        """
        super().__init__()
        self.model: Any = without_wrapper(model)
        self._guided: GuidedForward = GuidedForward(self.model, guidance)
        # For Accelerate's FSDP: layers are sharded one by one; the head, which forward reads
        # itself, with the whole, and so is what shares parameters with it (BERT's embeddings).
        names = self.model._no_split_modules
        self._no_split_modules = names and sorted(set(names) - _classes_tied_to_head(self.model))

    @property
    def method(self) -> Method:
        """How tokens are chosen."""
        return self._guided.method

    @method.setter
    def method(self, method: Method) -> None:
        self._guided.method = method

    def tie_weights(self) -> None:
        """Ties what the model's configuration ties; FSDP asks for it after loading."""
        self.model.tie_weights()

    def forward(self, *inputs: Any, **named: Any) -> StudentOutput:
        """Loss and metrics. Args: as `GuidedForward.__call__`, from `input_ids` on."""
        return self._guided(self.model, *inputs, **named)


def _classes_tied_to_head(model: Any) -> set[str]:
    """The names of the classes of all modules that share a parameter with the head."""
    base = base_of(model)
    heads = (child for child in model.children() if child is not base)
    of_head = {parameter for head in heads for parameter in head.parameters()}
    return {
        type(module).__name__
        for module in base.modules()
        if any(parameter in of_head for parameter in module.parameters())
    }

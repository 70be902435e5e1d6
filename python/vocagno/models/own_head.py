"""The language head of a model whose logits are not one product: its own code, on given states.

The base model runs once for all tokens. The causal model's own `forward` then turns a few hundred
states at a time into logits; a stand-in for the base model returns these states.

C: tokens of a chunk, H: hidden size, V: vocabulary.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class OwnHead:
    """The head of one model, computed in float32 for any type of the model."""

    model: nn.Module
    """A shallow copy of the causal model, with a stand-in for its base model."""
    weights: dict[str, Tensor]
    """The parameters of the head by their names in `model`."""
    vocabulary_size: int
    """The number of logits per state."""
    hidden_size: int
    num_ids: int | None = None
    """Number of leading ids to give logits for. Default: all."""

    @property
    def device(self) -> torch.device:
        """The device that states must be on."""
        return next(iter(self.weights.values())).device

    def logits(self, hidden_CH: Tensor, room: Tensor | None = None) -> Tensor:
        """(C, V) in float32, with gradients for the states and for `weights`.

        Args:
            room: not used; the model's code allocates its own.
        """
        # `forward` may read the shape of the ids. Only the stand-in gets their values.
        ids_1C = torch.zeros(1, len(hidden_CH), dtype=torch.int64, device=hidden_CH.device)
        stand_in = next(child for child in self.model.children() if isinstance(child, _StandIn))
        stand_in.states_1CH = hidden_CH.float()[None]
        try:
            with torch.autocast(hidden_CH.device.type, enabled=False):
                output = torch.func.functional_call(
                    self.model, self.for_chunks().weights, (), {"input_ids": ids_1C}
                )
        finally:
            stand_in.states_1CH = None
        logits_CV: Tensor = output.logits[0].float()
        return logits_CV if self.num_ids is None else logits_CV[:, : self.num_ids]

    def with_weights(self, weights: dict[str, Tensor]) -> "OwnHead":
        """The same head with other values of its parameters."""
        return replace(self, weights=weights)

    def for_chunks(self) -> "OwnHead":
        """The same head, with its weights converted once for all chunks."""
        return self.with_weights(
            {
                name: weight.float() if weight.is_floating_point() else weight
                for name, weight in self.weights.items()
            }
        )

    def as_type(self, dtype: torch.dtype) -> "OwnHead":
        """The same head: it is computed in float32 for any `dtype`."""
        return self

    def first(self, num_ids: int) -> "OwnHead":
        """The same head for the first `num_ids` ids."""
        return replace(self, num_ids=num_ids)

    def room_for(self, num_rows: int) -> Tensor | None:
        """None: the model's code allocates its own memory."""
        return None

    def no_states(self, count: int) -> Tensor:
        """(count, H) zeros in place of states."""
        weight = next(iter(self.weights.values()))
        return weight.new_zeros(count, self.hidden_size)


def own_head(model: Any, base: nn.Module, vocabulary_size: int, hidden_size: int) -> OwnHead | None:
    """The head of a causal model over `base`; None if `base` is not one of its own modules or
    contains all its parameters."""
    name = next((name for name, child in model.named_children() if child is base), None)
    if name is None:
        return None
    # A copy, so that the original model is not changed. Modules and parameters are shared; hooks on
    # the causal model itself (FSDP, offloading) must not run for a chunk.
    copy: nn.Module = object.__new__(type(model))
    copy.__dict__.update(model.__dict__)
    copy.__dict__.pop("forward", None)
    copy.__dict__["_modules"] = {**model._modules, name: _StandIn()}
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        copy.__dict__[hooks] = OrderedDict()
    weights = {name: whole(parameter) for name, parameter in copy.named_parameters()}
    if not weights:
        return None
    return OwnHead(copy, weights, vocabulary_size, hidden_size)


def whole(tensor: Any) -> Tensor:
    """The full tensor on each process, of a tensor that may be sharded (a DTensor)."""
    complete: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return complete


class _StandIn(nn.Module):
    """Returns given states for any input."""

    states_1CH: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> "_Output":
        """As a base model, without computing anything."""
        assert self.states_1CH is not None
        return _Output([self.states_1CH])


class _Output(tuple[Tensor, ...]):
    """Output of a base model: only the states, by position and by name."""

    __slots__ = ()

    @property
    def last_hidden_state(self) -> Tensor:
        """(1, C, H)"""
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

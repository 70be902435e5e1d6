"""Computes logits from given states by a model's own code, for a model whose logits are not one
product (`OwnHead`), and compares the logits of a head with those of the model on a few tokens
(`probe_ids`, `agree`).

The base model runs once for all tokens. The causal model's own `forward` then turns a few hundred
states at a time into logits; a stand-in for the base model returns these states.

B: rows, T: tokens of a row, N = B * T, C: tokens of a chunk, H: hidden size, V: vocabulary.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vocagno.models.batching import whole


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
        """Computes logits, (C, V) in float32, with gradients for the states and for `weights`.
        Args: room: not used; the model's code allocates its own."""
        # `forward` may read the shape of the ids. Only the stand-in gets their values.
        ids_1C = torch.zeros(1, len(hidden_CH), dtype=torch.int64, device=hidden_CH.device)
        stand_in = next(child for child in self.model.children() if isinstance(child, _StandIn))
        stand_in.states_1CH = hidden_CH.float()[None]
        try:
            # Under autocast the products of the head would be rounded to 16 bits, and the loss with
            # them.
            with torch.autocast(hidden_CH.device.type, enabled=False):
                # Weights that are passed, not those of the module: so gradients reach `weights`,
                # which are whole where the module's are sharded.
                output = torch.func.functional_call(
                    self.model, self.for_chunks().weights, (), {"input_ids": ids_1C}
                )
        finally:
            # Else the states of the last chunk stay in memory until the next one.
            stand_in.states_1CH = None
        logits_CV: Tensor = output.logits[0].float()
        return logits_CV if self.num_ids is None else logits_CV[:, : self.num_ids]

    def for_chunks(self) -> "OwnHead":
        """Returns a copy of the head with its weights converted once for all chunks."""
        weights = {
            name: weight.float() if weight.is_floating_point() else weight
            for name, weight in self.weights.items()
        }
        return replace(self, weights=weights)

    def as_type(self, dtype: torch.dtype) -> "OwnHead":
        """Returns the head itself, because it is computed in float32 for any `dtype`."""
        return self

    def first(self, num_ids: int) -> "OwnHead":
        """Returns a head that gives only the logits of the first `num_ids` ids."""
        return replace(self, num_ids=num_ids)

    def room_for(self, num_rows: int) -> Tensor | None:
        """Returns None, because the model's code allocates its own memory."""
        return None


@dataclass(frozen=True, slots=True)
class GivenLogits(OwnHead):
    """Stands for the head where logits are given instead of states: it returns what it is given."""

    where: torch.device | None = None
    """The device of the logits."""

    @classmethod
    def of(cls, logits: Tensor) -> "GivenLogits":
        """Makes the head for logits like these, whose last dimension is the vocabulary."""
        size = logits.shape[-1]
        return cls(nn.Identity(), {}, size, size, where=logits.device)

    @property
    def device(self) -> torch.device:
        """The device of the logits."""
        assert self.where is not None
        return self.where

    def logits(self, hidden_CH: Tensor, room: Tensor | None = None) -> Tensor:
        """Copies the given logits to (C, V) in float32, because losses are computed in place."""
        return hidden_CH[:, : self.num_ids].to(
            torch.float32, copy=True, memory_format=torch.contiguous_format
        )


def own_head(model: Any, base: nn.Module, vocabulary_size: int, hidden_size: int) -> OwnHead | None:
    """Makes the head of a causal model over `base`; None if `base` is not one of its own modules or
    contains all its parameters."""
    name = next((name for name, child in model.named_children() if child is base), None)
    if name is None:
        return None
    # A copy, so that the original model is not changed. Modules and parameters are shared; hooks on
    # the causal model itself (FSDP, offloading) must not run for a chunk.
    copy: nn.Module = object.__new__(type(model))
    copy.__dict__.update(model.__dict__)
    # Accelerate wraps `forward` as an attribute of the object; the class has the model's own.
    copy.__dict__.pop("forward", None)
    copy.__dict__["_modules"] = {**model._modules, name: _StandIn()}
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        copy.__dict__[hooks] = OrderedDict()
    # The base model is a stand-in here, so these are the parameters of the head, and no others.
    weights = {name: whole(parameter) for name, parameter in copy.named_parameters()}
    if not weights:
        return None
    return OwnHead(copy, weights, vocabulary_size, hidden_size)


class _StandIn(nn.Module):
    """Returns given states for any input."""

    states_1CH: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> "_Output":
        """Returns the states that were set, in the form of a base model's output."""
        assert self.states_1CH is not None
        return _Output([self.states_1CH])


class _Output(tuple[Tensor, ...]):
    """Output of a base model: only the states, by position and by name."""

    __slots__ = ()

    @property
    def last_hidden_state(self) -> Tensor:
        """The states, (1, C, H)."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        # Any other output (caches, router logits) is None, as for options that are not set. What
        # Python itself looks up has to be missing, not None.
        if name.startswith("__"):
            raise AttributeError(name)


PROBE_TOKENS = 32
"""Tokens per row, if the model can read that many."""
_IDS = 1000
"""The probe's ids are below this number: every vocabulary has ordinary tokens or bytes there."""


def probe_ids(vocabulary_size: int, positions: int | None, device: torch.device) -> Tensor:
    """Makes (2, T) ids: rows whose first half is the same; the second row is padded (id 0) at its
    end.
    Args: positions: maximum number of tokens that the model reads, if there is one."""
    length = PROBE_TOKENS
    if positions is not None:
        length = min(length, positions)
    # Fixed numbers, not random ones: a model is accepted on every machine or on none. 7 and 11 make
    # the halves differ at nearly all places.
    place_T, half = torch.arange(length, device=device), length // 2
    ids_BT = torch.stack([place_T * 7 + 3, place_T * 7 + 3])
    ids_BT[1, half:] = place_T[half:] * 11 + 5
    ids_BT %= min(vocabulary_size, _IDS)
    ids_BT[1, length - half // 2 :] = 0
    return ids_BT


def agree(computed_NV: Tensor, expected_NV: Tensor, dtype: torch.dtype) -> bool:
    """Tells whether logits are the same at each position within the precision of `dtype`.

    Differences are root mean squares over the vocabulary, because the largest of millions of
    rounding errors is not informative. They are compared with the spread of the logits, because a
    constant added to all logits does not change a loss. Infinite logits must be equal; NaN never
    agrees.
    """
    if computed_NV.shape != expected_NV.shape:
        return False
    finite_NV = expected_NV.isfinite()
    if not torch.equal(computed_NV[~finite_NV], expected_NV[~finite_NV]):
        return False
    # Infinite logits (ids that a model rules out) are equal, and infinity less infinity is NaN.
    difference_N = _root_mean_square(torch.where(finite_NV, computed_NV - expected_NV, 0))
    size_N = _root_mean_square(torch.where(finite_NV, expected_NV, 0))
    share = 1e-3 if _is_exact(dtype) else 5e-2
    allowed_N = share * expected_NV[finite_NV].std() + torch.finfo(dtype).eps * size_N
    return bool((difference_N <= allowed_N).all())


def _root_mean_square(values_NV: Tensor) -> Tensor:
    return values_NV.square().mean(-1).sqrt()


def sees_later_tokens(logits_BTV: Tensor, dtype: torch.dtype) -> bool:
    """Tells whether the different second halves of two rows change the logits of their equal first
    halves."""
    half = logits_BTV.shape[1] // 2
    first_TV, second_TV = logits_BTV[0, :half].double(), logits_BTV[1, :half].double()
    finite_TV = first_TV.isfinite() & second_TV.isfinite()
    if not finite_TV.any():
        return False  # nothing to compare; `agree` rejects such logits
    difference = (first_TV - second_TV)[finite_TV].square().mean().sqrt()
    spread = first_TV[finite_TV].std()
    # Equal first halves give equal logits. Low precision is allowed differences from the order of
    # sums; the effect of later tokens in a trained model is many times larger.
    return bool(difference > (1e-5 if _is_exact(dtype) else 2e-2) * spread)


def _is_exact(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64)

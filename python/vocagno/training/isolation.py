"""Sequences packed into one row that do not see each other.

B: rows, T: places of a row.
"""

from typing import Any

import torch
from torch import Tensor

from vocagno.errors import ConfigError


def isolation(piece_BT: Tensor, *, with_mask: bool = True) -> dict[str, Tensor]:
    """Positions that start anew in every piece, and a mask that keeps attention inside it.

    Args:
        with_mask: False for attention that finds the pieces by the positions.
    """
    length = piece_BT.shape[1]
    place_T = torch.arange(length)
    starts_BT = torch.cat([torch.ones_like(piece_BT[:, :1]), piece_BT.diff(dim=1)], 1) != 0
    start_BT = torch.where(starts_BT, place_T, 0).cummax(1).values
    positions = {"position_ids": place_T - start_BT}
    if not with_mask:
        return positions
    same_BTT = piece_BT[:, :, None] == piece_BT[:, None, :]
    mask_BTT = same_BTT & (place_T[:, None] >= place_T[None, :])
    return positions | {"attention_mask": mask_BTT[:, None]}


def keeps_apart(model: Any, *, with_mask: bool = True) -> bool:
    """Proves on two pieces of four tokens that the second is read as if it stood alone."""
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(8, device=device)[None]
    piece = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    extra = {
        name: value.to(device) for name, value in isolation(piece, with_mask=with_mask).items()
    }
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = model(input_ids=ids, use_cache=False, **extra).logits[:, 4:].float()
            alone = model(input_ids=ids[:, 4:], use_cache=False).logits.float()
        tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
        return torch.allclose(packed, alone, rtol=tolerance, atol=tolerance)
    except (RuntimeError, TypeError, ValueError, IndexError):  # the mask's form is not understood
        return False
    finally:
        model.train(training)


def attention_of(model: Any) -> str:
    """The name of its attention implementation."""
    return str(getattr(model.config, "_attn_implementation", None))


def check_isolation(model: Any) -> None:
    """Raises: ConfigError for a model (or an attention implementation) that ignores the mask."""
    if not keeps_apart(model):
        raise ConfigError(
            f"data.isolate: {type(model).__name__} with {attention_of(model)} attention does not "
            "keep packed documents apart; use a model with sdpa attention, or isolate: false"
        )

"""Candidates: the ids that a teacher finds likely at each of its tokens, with their probabilities
in 8 bits each.

`teacher/sampling.py` finds them in a model's logits, `teacher/candidate_frames.py` stores them.

M: teacher tokens, K: candidates of a token, W: ids that an engine gives for a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.config.teacher import MOST_CANDIDATES
from vocagno.errors import InputError
from vocagno.teacher.windows import MINUS_INFINITY, ROUNDING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RANGE = 16.0
"""In nats: a candidate that is less likely than exp(-16) counts as one of that probability."""
NONE = 255
"""The code of a place without a candidate."""
MAX_IDS = 1 << 24
"""A vocabulary may have this many ids: a stored id takes at most three bytes."""
_STEPS = 254
"""The largest code of a log-probability; it stands for `RANGE`."""
_MIN_SAMPLED_SUM = 0.5
"""Sampled candidates of a token sum to at least this: codes take off 7 %, and ids that only pad the
head of the model have the rest. A row below it is no distribution and stays as it is."""
_MAX_SUM = 1 + 1e-2
"""Probabilities of different ids may sum to this: an engine rounds each of them."""
_PROBABILITIES: NDArray[np.float32] = np.append(
    np.exp(-RANGE * (np.arange(_STEPS + 1) / _STEPS) ** 2), 0
).astype(np.float32)
"""The probability that each code stands for; 0 for `NONE`."""
_ENTROPIES: NDArray[np.float32] = np.append(
    RANGE * (np.arange(_STEPS + 1) / _STEPS) ** 2, np.nan
).astype(np.float32)
"""The entropy in nats that each code stands for; NaN for `NONE`."""
_BETWEEN: NDArray[np.float32] = (RANGE * ((np.arange(_STEPS) + 0.5) / _STEPS) ** 2).astype(
    np.float32
)
"""In nats, the limits between neighbouring codes. A search among them gives the same code on any
device; a square root does not."""


class ScoredWindow(NamedTuple):
    """The result of a scorer with candidates for the n requested tokens of a window."""

    nll: NDArray[np.float32]
    """(n,) losses in nats, the same as from a scorer without candidates."""
    ids: NDArray[np.int32]
    """(n, K) ids of the candidates (`Candidates.ids`)."""
    codes: NDArray[np.uint8]
    """(n, K) their log-probabilities (`Candidates.codes`)."""
    entropy: NDArray[np.uint8] | None = None
    """(n,) the entropies (`Candidates.entropy`); None if the engine cannot give them."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The most likely ids at each of M teacher tokens, next to the real one.

    A probability is off by 0.5 % at 0.9, 1.6 % at 0.37, and at most 6.5 % at exp(-16).
    """

    tokens: NDArray[np.int32]
    """(M,) the id of the real token."""
    ids: NDArray[np.int32]
    """(M, K) most likely first, then those that were sampled, if any. -1 stands for no candidate:
    at a token without a loss, or if fewer than K ids have any mass."""
    codes: NDArray[np.uint8]
    """(M, K) the log-probability: 255 for none, else -16 * (code / 254) ** 2 nats."""
    is_sampled: bool = False
    """True if the less likely ids were drawn at random, so that the K ids of a token stand for all
    ids of the vocabulary."""
    entropy: NDArray[np.uint8] | None = None
    """(M,) the entropy of the teacher's whole distribution at each token, of which the candidates
    are a part: 255 for none, else 16 * (code / 254) ** 2 nats. None if it is not known, for example
    from a teacher behind a server."""

    @classmethod
    def none(
        cls, num_tokens: int, count: int, *, is_sampled: bool = False, has_entropy: bool = False
    ) -> "Candidates":
        """Makes M tokens without a candidate; the real tokens are -1, too."""
        ids = np.full((num_tokens, count), -1, np.int32)
        codes = np.full(ids.shape, NONE, np.uint8)
        entropy = codes[:, 0].copy() if has_entropy else None
        return cls(np.full(num_tokens, -1, np.int32), ids, codes, is_sampled, entropy)

    @classmethod
    def of(
        cls,
        tokens: ArrayLike,
        ids: ArrayLike,
        log_p: ArrayLike,
        num_ids: int,
        entropy: ArrayLike | None = None,
    ) -> "Candidates":
        """Encodes arrays, for a store of another tool's distributions (`DocumentScores`).

        Args:
            tokens: (M,) integers, the ids of the real tokens.
            ids: (M, K) integers, K from 1 to 255, each id at most once in a row, in any order; -1
                where a token has fewer candidates.
            log_p: (M, K) their natural logarithms of the probability (nats); minus infinity for -1.
                An id with minus infinity is no candidate.
            num_ids: of the teacher's tokenizer, at most 2 ** 24.
            entropy: (M,) nats, of the teacher's distributions over all ids, which
                `guidance.distill_where: surer` needs; NaN for none.
        Raises: InputError for other shapes, types or ids, NaN, log-probabilities above 0 (by more
            than 0.1, which is rounding), and probabilities of a row that sum to more than 1.01.
        """

        def error(message: str) -> InputError:
            return InputError(f"Candidates.of: the caller {message}")

        tokens, ids, log_p = np.asarray(tokens), np.asarray(ids), np.asarray(log_p, np.float64)
        if (
            ids.ndim != 2
            or ids.shape[0] != tokens.size
            or tokens.ndim != 1
            or not (ids.shape == log_p.shape and 1 <= ids.shape[1] <= MOST_CANDIDATES)
        ):
            raise error(
                f"gives tokens, ids and log_p of shape {tokens.shape}, {ids.shape} and "
                f"{log_p.shape}; expected (M,), (M, K) and (M, K), K from 1 to {MOST_CANDIDATES}"
            )
        for name, column, smallest in (("tokens", tokens, 0), ("ids", ids, -1)):
            if not np.issubdtype(column.dtype, np.integer):
                raise error(f"gives {name} of type {column.dtype}; expected integers")
            if column.size and not (
                smallest <= column.min() <= column.max() < min(num_ids, MAX_IDS)
            ):
                raise error(
                    f"gives {name} from {column.min()} to {column.max()}; expected ids from "
                    f"{smallest} to {min(num_ids, MAX_IDS) - 1:,}"
                )
        if ((ids < 0) & (log_p > -np.inf)).any():
            raise error("gives the id -1 with a probability; expected minus infinity there")
        sorted_ids, sorted_log_p, is_first = _sort_by_id(ids.astype(np.int64), log_p, error)
        if (is_first != (sorted_ids >= 0)).any():
            raise error("gives an id twice for one token")
        ids_and_codes = _encode_likeliest(sorted_ids, sorted_log_p, is_first, ids.shape[1])
        if entropy is None:
            return cls(tokens.astype(np.int32), *ids_and_codes)
        nats = np.asarray(entropy, np.float64)
        largest = np.log(num_ids)
        if nats.shape != tokens.shape or ((nats < -ROUNDING) | (nats > largest + ROUNDING)).any():
            raise error(
                f"gives entropies of shape {nats.shape} from {np.nanmin(nats, initial=0):g} to "
                f"{np.nanmax(nats, initial=0):g}; expected {tokens.shape}, from 0 to {largest:g} "
                f"nats, that of {num_ids:,} equally likely ids"
            )
        return cls(tokens.astype(np.int32), *ids_and_codes, entropy=codes_of(-nats))

    @classmethod
    def concatenate(cls, parts: Sequence["Candidates"]) -> "Candidates":
        """Joins the tokens of all parts, of which there is at least one, in order.
        Raises: ValueError if some parts are sampled or have entropies, and others do not."""
        parts = [part for part in parts if len(part.tokens)] or list(parts[:1])
        kinds = {(part.is_sampled, part.entropy is not None) for part in parts}
        if len(kinds) > 1:
            raise ValueError(
                "candidates: those of some tokens are sampled or have entropies, and those of "
                "others are not or have none; take them from stores that were made alike"
            )
        is_sampled, has_entropy = kinds.pop()
        tokens, ids, codes, *entropy = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "ids", "codes", *(["entropy"] if has_entropy else []))
        )
        return cls(tokens, ids, codes, is_sampled, *entropy)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> "Candidates":
        entropy = None if self.entropy is None else self.entropy[rows]
        columns = self.tokens[rows], self.ids[rows], self.codes[rows]
        return Candidates(*columns, self.is_sampled, entropy)

    @property
    def nats_of_entropy(self) -> NDArray[np.float32]:
        """(M,) the entropies in nats; NaN for a token without one."""
        if self.entropy is None:
            return np.full(len(self.tokens), np.nan, np.float32)
        return _ENTROPIES[self.entropy]

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(M, K) the probabilities; 0 for no candidate. A row of sampled candidates is divided by
        its sum, because they stand for all ids; another one only if rounding lets it sum to more
        than 1."""
        decoded = _PROBABILITIES[self.codes]
        sums: NDArray[np.float64] = decoded.sum(1, np.float64)
        is_divided = sums >= _MIN_SAMPLED_SUM if self.is_sampled else sums > 1
        return (decoded / np.where(is_divided, sums, 1.0)[:, None]).astype(np.float32)


def probabilities_of(codes: "Tensor", *, is_sampled: bool) -> "Tensor":
    """Decodes (..., K) codes on a device into the values that `Candidates.probabilities` has."""
    decoded = _tables(codes.device)[0][codes.long()]
    sums = decoded.double().sum(-1, keepdim=True)
    is_divided = sums >= _MIN_SAMPLED_SUM if is_sampled else sums > 1
    return (decoded / sums.where(is_divided, 1.0)).float()


def codes_of(log_p: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Encodes log-probabilities (nats) as `Candidates.codes`; 255 for one that is not finite."""
    codes = np.searchsorted(_BETWEEN, -log_p.astype(np.float32))
    return np.where(np.isfinite(log_p), codes, NONE).astype(np.uint8)


def entropies_of(codes: "Tensor") -> "Tensor":
    """Decodes (...) codes on a device into the values that `Candidates.nats_of_entropy` has."""
    return _tables(codes.device)[2][codes.long()]


def device_codes_of(log_p: "Tensor") -> "Tensor":
    """Encodes float32 log-probabilities on a device, to the same codes as `codes_of`."""
    import torch

    codes = torch.bucketize(-log_p, _tables(log_p.device)[1], out_int32=True)
    return codes.where(log_p.isfinite(), NONE).byte()


@cache
def _tables(device: "torch.device") -> tuple["Tensor", "Tensor", "Tensor"]:
    """Copies `_PROBABILITIES`, `_BETWEEN` and `_ENTROPIES` to a device, once: each copy waits for
    the device."""
    import torch

    probabilities, between, entropies = map(
        torch.from_numpy, (_PROBABILITIES, _BETWEEN, _ENTROPIES)
    )
    return probabilities.to(device), between.to(device), entropies.to(device)


def code_candidates(
    ids: NDArray[np.int64],
    log_p: NDArray[np.float64],
    count: int,
    num_ids: int | None,
    error: Callable[[str], Exception],
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Encodes the ids that another engine gives for n tokens: (n, K) ids and (n, K) codes.

    Args:
        ids: (n, W), in any order; -1 for no id, and the real token may be there twice.
        log_p: (n, W) their log-probabilities.
        num_ids: of the teacher's tokenizer. Further ids of the model, which pad it, are no
            candidates.
        error: makes the exception if the ids or log-probabilities are not those of a distribution.
    """
    if ids.size and ids.max() >= MAX_IDS:
        raise error(f"gives a candidate {ids.max()}; expected ids below {MAX_IDS:,}")
    ids, log_p, is_first = _sort_by_id(ids, log_p, error)
    expected = count if num_ids is None else min(count, num_ids)
    if (is_first.sum(1) < expected).any():
        raise error(f"gives {is_first.sum(1).min()} candidates of a token instead of {expected}")
    if num_ids is not None:
        is_first &= ids < num_ids
    return _encode_likeliest(ids, log_p, is_first, count)


def _sort_by_id(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], error: Callable[[str], Exception]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Sorts each row by id: (n, W) ids, (n, W) log-probabilities, and (n, W) True for the first
    entry of each id. Raises: `error` if the log-probabilities are not those of a distribution."""
    if (bad := log_p[~(log_p <= ROUNDING)]).size:  # NaN, too
        raise error(f"gives a candidate a log-probability of {bad[0]:g}; expected at most 0")
    log_p = np.minimum(log_p, 0.0)  # above 0 by rounding, as losses may be
    ids, log_p = _in_order(ids, log_p, np.lexsort((-log_p, ids)))
    is_first = ids >= 0
    is_first[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    sums = np.where(is_first, np.exp(log_p), 0).sum(1)
    if (sums > _MAX_SUM).any():
        raise error(f"gives candidates whose probabilities sum to {sums.max():.3f}")
    return ids, log_p, is_first


def _encode_likeliest(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], is_used: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """(n, K) ids and (n, K) codes of the most likely used ids, in order."""
    is_used = is_used & (log_p > MINUS_INFINITY)
    ids, log_p = np.where(is_used, ids, -1), np.where(is_used, log_p, -np.inf)
    ids, log_p = _in_order(ids, log_p, np.lexsort((ids, -log_p))[:, :count])
    missing = ((0, 0), (0, count - ids.shape[1]))
    padded_ids = np.pad(ids.astype(np.int32), missing, constant_values=-1)
    return padded_ids, np.pad(codes_of(log_p), missing, constant_values=NONE)


def _in_order(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], order: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Both arrays with their columns in the order that is given for each row."""
    return np.take_along_axis(ids, order, 1), np.take_along_axis(log_p, order, 1)

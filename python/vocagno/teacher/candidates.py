"""Candidates: ids that a teacher finds likely at each of its tokens, in 8 bits each.

M: teacher tokens, K: candidates of a token, C: tokens of a chunk, V: vocabulary, J: blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from vocagno.config.teacher import MOST_CANDIDATES
from vocagno.errors import InputError
from vocagno.teacher.windows import MINUS_INFINITY, ROUNDING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RANGE = 16.0
"""Nats: a less likely candidate counts as one of this log-probability."""
NONE = 255
"""The code of a place without a candidate."""
BLOCK_TOKENS = 8_192
"""Tokens of a frame: a piece of a long document decodes only the frames that it needs."""
CANDIDATE_BYTES = 2.0
"""Of one candidate, about: SmolLM2-135M, 16 of each token."""
_MOST_IDS = 1 << 24
"""An id takes three bytes at most."""
_STEPS = 254
_BLOCK = 64
_WIDE, _WITH_ENTROPY = 1, 2
"""Flags of a frame."""
_LEAST_SUM = 0.5
"""What sampled candidates of a token sum to at least: codes take off 7 %, and ids that only pad the
head of the model have the rest. A row below it is no distribution and stays as it is."""
_MOST = 1 + 1e-2
"""What probabilities of different ids may sum to: an engine rounds each of them."""
_PROBABILITIES: NDArray[np.float32] = np.append(
    np.exp(-RANGE * (np.arange(_STEPS + 1) / _STEPS) ** 2), 0
).astype(np.float32)
_ENTROPIES: NDArray[np.float32] = np.append(
    RANGE * (np.arange(_STEPS + 1) / _STEPS) ** 2, np.nan
).astype(np.float32)
_BETWEEN: NDArray[np.float32] = (RANGE * ((np.arange(_STEPS) + 0.5) / _STEPS) ** 2).astype(
    np.float32
)
"""Nats between two codes. A search gives the same code on any device; a square root does not."""


class Scored(NamedTuple):
    """What a scorer with candidates gives for n requested tokens."""

    nll: NDArray[np.float32]
    """(n,) as from a scorer without candidates."""
    ids: NDArray[np.int32]
    """(n, K) as `Candidates.ids`."""
    codes: NDArray[np.uint8]
    """(n, K) as `Candidates.codes`."""
    entropy: NDArray[np.uint8] | None = None
    """(n,) as `Candidates.entropy`; None if the engine cannot give it."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The most likely ids at each of M teacher tokens, next to the real one.

    A probability is off by 0.5 % at 0.9, 1.6 % at 0.37, and at most 6.5 % at exp(-16).
    """

    tokens: NDArray[np.int32]
    """(M,) the id of the real token."""
    ids: NDArray[np.int32]
    """(M, K) most likely first, then those that were drawn, if any; -1 where there is none: at a
    token without a loss, or if fewer have any mass."""
    codes: NDArray[np.uint8]
    """(M, K) the log-probability: 255 for none, else -16 * (code / 254) ** 2 nats."""
    is_sampled: bool = False
    """Whether the less likely ids were drawn, so that the K ids of a token stand for all ids."""
    entropy: NDArray[np.uint8] | None = None
    """(M,) the entropy of the teacher's whole distribution at each token, of which the candidates
    are a part: 255 for none, else 16 * (code / 254) ** 2 nats. None if it is not known, as of a
    teacher behind a server."""

    @classmethod
    def none(
        cls, num_tokens: int, count: int, *, is_sampled: bool = False, has_entropy: bool = False
    ) -> "Candidates":
        """(M, K) places without a candidate; the real tokens are -1."""
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
        """Candidates of arrays, for a store of another tool's distributions (`DocumentScores`).

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

        def error(words: str) -> InputError:
            return InputError(f"Candidates.of: the caller {words}")

        real, given, given_p = np.asarray(tokens), np.asarray(ids), np.asarray(log_p, np.float64)
        if (
            given.ndim != 2
            or given.shape[0] != real.size
            or real.ndim != 1
            or not (given.shape == given_p.shape and 1 <= given.shape[1] <= MOST_CANDIDATES)
        ):
            raise error(
                f"gives tokens, ids and log_p of shape {real.shape}, {given.shape} and "
                f"{given_p.shape}; expected (M,), (M, K) and (M, K), K from 1 to {MOST_CANDIDATES}"
            )
        for name, one, least in (("tokens", real, 0), ("ids", given, -1)):
            if not np.issubdtype(one.dtype, np.integer):
                raise error(f"gives {name} of type {one.dtype}; expected integers")
            if one.size and not least <= one.min() <= one.max() < min(num_ids, _MOST_IDS):
                raise error(
                    f"gives {name} from {one.min()} to {one.max()}; expected ids from {least} "
                    f"to {min(num_ids, _MOST_IDS) - 1:,}"
                )
        if ((given < 0) & (given_p > -np.inf)).any():
            raise error("gives the id -1 with a probability; expected minus infinity there")
        in_order, in_order_p, is_one = _distinct(given.astype(np.int64), given_p, error)
        if (is_one != (in_order >= 0)).any():
            raise error("gives an id twice for one token")
        coded = _coded(in_order, in_order_p, is_one, given.shape[1])
        if entropy is None:
            return cls(real.astype(np.int32), *coded)
        nats = np.asarray(entropy, np.float64)
        most = np.log(num_ids)
        if nats.shape != real.shape or ((nats < -ROUNDING) | (nats > most + ROUNDING)).any():
            raise error(
                f"gives entropies of shape {nats.shape} from {np.nanmin(nats, initial=0):g} to "
                f"{np.nanmax(nats, initial=0):g}; expected {real.shape}, from 0 to {most:g} nats, "
                f"that of {num_ids:,} equally likely ids"
            )
        return cls(real.astype(np.int32), *coded, entropy=codes_of(-nats))

    @classmethod
    def concatenate(cls, parts: Sequence["Candidates"]) -> "Candidates":
        """The tokens of all parts, at least one, in order.
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
        """(M,) the entropies in nats; NaN for none."""
        if self.entropy is None:
            return np.full(len(self.tokens), np.nan, np.float32)
        return _ENTROPIES[self.entropy]

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(M, K), 0 for none. A row of sampled candidates is divided by its sum, because they stand
        for all ids; another one only if rounding lets it sum to more than 1."""
        decoded = _PROBABILITIES[self.codes]
        sums: NDArray[np.float64] = decoded.sum(1, np.float64)
        is_divided = sums >= _LEAST_SUM if self.is_sampled else sums > 1
        return (decoded / np.where(is_divided, sums, 1.0)[:, None]).astype(np.float32)


def probabilities_of(codes: "Tensor", *, is_sampled: bool) -> "Tensor":
    """`Candidates.probabilities` of (..., K) codes on a device."""
    decoded = _tables(codes.device)[0][codes.long()]
    sums = decoded.double().sum(-1, keepdim=True)
    is_divided = sums >= _LEAST_SUM if is_sampled else sums > 1
    return (decoded / sums.where(is_divided, 1.0)).float()


def codes_of(log_p: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """The codes of log-probabilities; 255 for one that is not finite."""
    found = np.searchsorted(_BETWEEN, -log_p.astype(np.float32))
    return np.where(np.isfinite(log_p), found, NONE).astype(np.uint8)


def entropies_of(codes: "Tensor") -> "Tensor":
    """`Candidates.nats_of_entropy` of (...) codes on a device."""
    return _tables(codes.device)[2][codes.long()]


def device_codes_of(log_p: "Tensor") -> "Tensor":
    """As `codes_of`, for float32 on a device."""
    import torch

    found = torch.bucketize(-log_p, _tables(log_p.device)[1], out_int32=True)
    return found.where(log_p.isfinite(), NONE).byte()


@cache
def _tables(device: "torch.device") -> tuple["Tensor", "Tensor", "Tensor"]:
    """`_PROBABILITIES`, `_BETWEEN` and `_ENTROPIES` on a device, copied once: a copy waits for the
    device."""
    import torch

    probabilities, between, entropies = map(
        torch.from_numpy, (_PROBABILITIES, _BETWEEN, _ENTROPIES)
    )
    return probabilities.to(device), between.to(device), entropies.to(device)


def most_likely(logits_CV: "Tensor", count: int) -> tuple["Tensor", "Tensor"]:
    """(C, K) the largest logits, in order, and their ids (int32). Of equal logits the smaller id
    comes first. Minus infinity and -1 where the vocabulary has fewer ids.

    The K largest are in the K blocks of 64 ids with the largest maxima, so the rest is read once.
    `torch.topk` over whole rows takes ten times as long (49,152 ids, K = 16, a CPU).
    """
    import torch

    num_ids = logits_CV.shape[1]
    whole = num_ids - num_ids % _BLOCK
    shape = len(logits_CV), whole // _BLOCK, _BLOCK
    maxima = [logits_CV[:, :whole].view(shape).amax(2)]
    if whole < num_ids:
        maxima.append(logits_CV[:, whole:].amax(1, keepdim=True))
    maxima_CJ = torch.cat(maxima, 1)
    blocks_CJ = _keys(maxima_CJ, torch.arange(maxima_CJ.shape[1], device=logits_CV.device))
    best_CJ = _index_of(blocks_CJ.topk(min(count, maxima_CJ.shape[1]), 1).values)
    ids = (best_CJ[..., None] * _BLOCK + torch.arange(_BLOCK, device=logits_CV.device)).flatten(1)
    keys = _keys(logits_CV.gather(1, ids.clamp_max(num_ids - 1)), ids)
    keys.masked_fill_(ids >= num_ids, torch.iinfo(torch.int64).min)
    ids_CK = _index_of(keys.topk(min(count, num_ids), 1).values)
    missing = (0, count - ids_CK.shape[1])
    found_CK = torch.nn.functional.pad(logits_CV.gather(1, ids_CK), missing, value=-torch.inf)
    return found_CK, torch.nn.functional.pad(ids_CK.int(), missing, value=-1)


def sample_(
    exponentials_CV: "Tensor",
    top_C1: "Tensor",
    likeliest: tuple["Tensor", "Tensor"],
    uniform_C: "Tensor",
) -> tuple["Tensor", "Tensor"]:
    """(C, K) what each id stands for, as a logit, and the ids (int32): the K ids with the least
    variance whose probabilities are right on average (Fearnhead and Clifford 2003). Minus infinity
    and -1 where fewer have any mass.

    Args:
        exponentials_CV: of the logits after `top_C1` was subtracted; they are overwritten.
        likeliest: what `most_likely` gives for the logits.
        uniform_C: numbers of [0, 1).

    Ids of at least a threshold are sure; of the others each is drawn with the probability of its
    mass divided by the threshold, and stands for that. With the threshold K are kept. Systematic:
    equal steps in the cumulated mass of the others, which is looked through by blocks.
    """
    import torch

    (num_rows, num_ids), (found_CK, likeliest_CK) = exponentials_CV.shape, likeliest
    places_CK = likeliest_CK.clamp_min(0).long()
    # Without a copy, which takes as long as the rest, where the ids make whole blocks.
    others_CV = exponentials_CV
    if num_ids % _BLOCK:
        others_CV = torch.nn.functional.pad(exponentials_CV, (0, -num_ids % _BLOCK))
    others_CV.scatter_(1, places_CK, 0.0)
    mass_CK = (found_CK - top_C1).exp()
    sums_CJ = (blocks_CJB := others_CV.view(num_rows, -1, _BLOCK)).sum(2)
    rest_CK = sums_CJ.sum(1, keepdim=True) + mass_CK.flip(1).cumsum(1).flip(1)
    steps_K = torch.arange(found_CK.shape[1], device=exponentials_CV.device)
    is_sure_CK = ((mass_CK > 0) & (mass_CK * (steps_K.flip(0) + 1) >= rest_CK)).cumprod(1).bool()
    unsure_CK = mass_CK.masked_fill(is_sure_CK, 0.0)
    others_CV.scatter_(1, places_CK, unsure_CK)
    own_CK = places_CK // _BLOCK  # blocks; scatter_add_ adds in any order on a GPU
    more_CK = ((own_CK[:, :, None] == own_CK[:, None, :]) * unsure_CK[:, None, :]).sum(2)
    sums_CJ = sums_CJ.scatter(1, own_CK, sums_CJ.gather(1, own_CK) + more_CK).cumsum(1)
    threshold_C1 = sums_CJ[:, -1:] / (~is_sure_CK).sum(1, keepdim=True).clamp_min(1)
    steps_CK = (steps_K - is_sure_CK.sum(1, keepdim=True)).clamp_min(0)
    points_CK = (uniform_C[:, None] + steps_CK) * threshold_C1
    block_CK = _first_beyond(sums_CJ, points_CK)
    inside_CKB = blocks_CJB.gather(1, block_CK[..., None].expand(-1, -1, _BLOCK)).cumsum(2)
    before_CK = torch.where(block_CK > 0, sums_CJ.gather(1, (block_CK - 1).clamp_min(0)), 0.0)
    place_CK = _first_beyond(inside_CKB, (points_CK - before_CK)[..., None])[..., 0]
    drawn_CK = block_CK * _BLOCK + place_CK
    is_drawn_CK = ~is_sure_CK & (others_CV.gather(1, drawn_CK) > 0)
    given_CK = (threshold_C1.log() + top_C1).where(is_drawn_CK, -torch.inf)
    ids_CK = drawn_CK.int().where(is_drawn_CK, -1)
    return found_CK.where(is_sure_CK, given_CK), likeliest_CK.where(is_sure_CK, ids_CK)


def _first_beyond(sums: "Tensor", points: "Tensor") -> "Tensor":
    """Where sums exceed points, along the last dimension; rounding may put a point behind all mass,
    and then it is the last place with any. Any place where sums are NaN."""
    import torch

    last = torch.searchsorted(sums, sums[..., -1:].contiguous()).clamp_max(sums.shape[-1] - 1)
    return torch.searchsorted(sums, points, right=True).minimum(last)


_INDEX = (1 << 32) - 1


def _keys(values: "Tensor", index: "Tensor") -> "Tensor":
    """int64 in the order of float32 values, and of falling indices among equal values."""
    import torch

    bits = (values + 0.0).view(torch.int32)  # no negative zero
    return bits.where(bits >= 0, bits ^ 0x7FFFFFFF).long() << 32 | (_INDEX - index)


def _index_of(keys: "Tensor") -> "Tensor":
    return _INDEX - (keys & _INDEX)


def given_candidates(
    ids: NDArray[np.int64],
    log_p: NDArray[np.float64],
    count: int,
    num_ids: int | None,
    error: Callable[[str], Exception],
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """(n, K) ids and codes, from what another engine gives for n tokens.

    Args:
        ids: (n, W), in any order; -1 for nothing, and the real token may be there twice.
        log_p: (n, W) their log-probabilities.
        num_ids: of the teacher's tokenizer. Further ids of the model, which pad it, are no
            candidates.
        error: makes the exception for what is no distribution.
    """
    if ids.size and ids.max() >= _MOST_IDS:
        raise error(f"gives a candidate {ids.max()}; expected ids below {_MOST_IDS:,}")
    ids, log_p, is_one = _distinct(ids, log_p, error)
    least = count if num_ids is None else min(count, num_ids)
    if (is_one.sum(1) < least).any():
        raise error(f"gives {is_one.sum(1).min()} candidates of a token instead of {least}")
    if num_ids is not None:
        is_one &= ids < num_ids
    return _coded(ids, log_p, is_one, count)


def _distinct(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], error: Callable[[str], Exception]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """(n, W) both in the order of ids, and where an id is the first of its kind. Raises: `error`
    for what is no distribution."""
    if (bad := log_p[~(log_p <= ROUNDING)]).size:  # NaN, too
        raise error(f"gives a candidate a log-probability of {bad[0]:g}; expected at most 0")
    log_p = np.minimum(log_p, 0.0)  # above 0 by rounding, as losses may be
    ids, log_p = _in_order(ids, log_p, np.lexsort((-log_p, ids)))
    is_one = ids >= 0
    is_one[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    sums = np.where(is_one, np.exp(log_p), 0).sum(1)
    if (sums > _MOST).any():
        raise error(f"gives candidates whose probabilities sum to {sums.max():.3f}")
    return ids, log_p, is_one


def _coded(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], is_one: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """(n, K) ids and codes of the most likely ones."""
    is_one = is_one & (log_p > MINUS_INFINITY)
    ids, log_p = np.where(is_one, ids, -1), np.where(is_one, log_p, -np.inf)
    ids, log_p = _in_order(ids, log_p, np.lexsort((ids, -log_p))[:, :count])
    missing = ((0, 0), (0, count - ids.shape[1]))
    padded_ids = np.pad(ids.astype(np.int32), missing, constant_values=-1)
    return padded_ids, np.pad(codes_of(log_p), missing, constant_values=NONE)


def _in_order(
    ids: NDArray[np.int64], log_p: NDArray[np.float64], order: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.take_along_axis(ids, order, 1), np.take_along_axis(log_p, order, 1)


def encode(candidates: Candidates) -> bytes:
    """A byte of flags (1: ids need more than 16 bits; 2: there are entropies) and a zstd frame: of
    ids the low 16 bits, and the others if there are any; the codes as differences along K,
    candidate by candidate; the real tokens as the ids; the entropies.

    Raises: ValueError for an id of more than 24 bits, or one without a code.
    """
    ids, codes = candidates.ids, candidates.codes
    numbers = [np.where(codes == NONE, 0, ids), candidates.tokens]
    if (
        any(((one < 0) | (one >= _MOST_IDS)).any() for one in numbers)
        or (ids[codes == NONE] >= 0).any()
    ):
        raise ValueError("candidates: an id is out of range, or has no code")
    is_wide = any((one >= 1 << 16).any() for one in numbers)
    coded_ids, coded_tokens = (
        one.astype("<u2").tobytes() + (one >> 16).astype(np.uint8).tobytes() * is_wide
        for one in numbers
    )
    differences = np.diff(codes, axis=1, prepend=np.uint8(0))
    entropy = b"" if candidates.entropy is None else candidates.entropy.tobytes()
    content = coded_ids + differences.T.tobytes() + coded_tokens + entropy
    frame: bytes = _codec().compress(content, asbytes=True)
    return bytes([is_wide * _WIDE | bool(entropy) * _WITH_ENTROPY]) + frame


def decode(data: bytes | NDArray[np.uint8], num_tokens: int, count: int) -> Candidates:
    """Decodes what `encode` made of M tokens with K candidates."""
    is_wide, has_entropy = bool(data[0] & _WIDE), bool(data[0] & _WITH_ENTROPY)
    size, width = num_tokens * count, 3 if is_wide else 2
    length = width * (size + num_tokens) + size + has_entropy * num_tokens
    content = _codec().decompress(pa.py_buffer(data)[1:], length, asbytes=True)

    def numbers(start: int, size: int) -> NDArray[np.int32]:
        found = np.frombuffer(content, "<u2", size, start).astype(np.int32)
        if is_wide:
            found |= np.frombuffer(content, np.uint8, size, start + 2 * size).astype(np.int32) << 16
        return found

    differences = np.frombuffer(content, np.uint8, size, width * size).reshape(count, num_tokens)
    codes = np.ascontiguousarray(np.cumsum(differences, 0, np.uint8).T)
    ids = np.where(codes == NONE, -1, numbers(0, size).reshape(num_tokens, count))
    tokens = numbers(width * size + size, num_tokens)
    entropy = None
    if has_entropy:
        entropy = np.frombuffer(content, np.uint8, num_tokens, length - num_tokens).copy()
    return Candidates(tokens, ids.astype(np.int32), codes, entropy=entropy)


@cache
def _codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=9)


def frames_of(candidates: Candidates) -> list[bytes]:
    """A document's candidates, encoded in frames of 8,192 tokens."""
    starts = range(0, len(candidates.tokens), BLOCK_TOKENS)
    return [encode(candidates[start : start + BLOCK_TOKENS]) for start in starts]


def candidates_in(
    data: NDArray[np.uint8], sizes: NDArray[np.int32], num_tokens: int, count: int, rows: slice
) -> Candidates:
    """Those of some tokens of a document, from its concatenated frames."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first, stop = rows.start // BLOCK_TOKENS, -(-rows.stop // BLOCK_TOKENS)
    parts = [Candidates.none(0, count)]
    for number in range(first, stop if rows.start < rows.stop else first):
        size = min(BLOCK_TOKENS, num_tokens - number * BLOCK_TOKENS)
        parts.append(decode(data[ends[number] - sizes[number] : ends[number]], size, count))
    start = rows.start - first * BLOCK_TOKENS
    return Candidates.concatenate(parts)[start : start + rows.stop - rows.start]

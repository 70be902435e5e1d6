"""Scorers, which compute the loss of each token of a sequence under a model: the protocol, and the
scorer for transformers models in this process.

B: rows of a batch, T: places of a row, N: requested tokens, K: candidates of a token,
C: tokens of a chunk, V: vocabulary.
"""

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config.teacher import Batching
from vocagno.errors import ConfigError
from vocagno.models.batching import (
    Layout,
    Rows,
    attention_of,
    boundaries,
    buckets,
    isolation,
    keeps_apart,
    lay_out,
    mask_fits,
    packs,
)
from vocagno.models.head import Head, hidden_states, language_head
from vocagno.models.losses import (
    causal_shift,
    chunked_nll,
    logits_of_chunks,
    losses_and_entropies_,
)
from vocagno.teacher.candidates import NONE, ScoredWindow, device_codes_of
from vocagno.teacher.sampling import most_likely, sample_
from vocagno.teacher.windows import Window, windows_to_score


@dataclass(frozen=True, slots=True)
class Pass:
    """The sequences of one forward pass, and the tokens whose losses are requested. Tensors are on
    the host, in pinned memory for a GPU."""

    numbers: list[int]
    """Indices of the windows that are read, in the order of the N tokens."""
    ids_BT: Tensor
    """Input ids; 0 at padding."""
    piece_BT: Tensor | None
    """The sequence of its row that each place belongs to (`Layout.piece_BT`); None if each row is
    one sequence."""
    boundaries: dict[str, Any]
    """Boundaries of the sequences, for attention that takes them."""
    places_N: Tensor
    """Places of the flattened batch whose states predict the requested tokens."""
    labels_N: Tensor
    """The requested tokens."""
    counts: list[int]
    """Number of the N tokens that belong to each window."""
    rows_N: Tensor | None = None
    """Indices of the labels among the tokens of all texts, if the losses stay on the device."""
    uniform_N: Tensor | None = None
    """Random numbers in [0, 1) with which candidates are sampled; None if they are not."""


class Scorer(Protocol):
    """Gives each token its loss under a model, given the tokens before it."""

    def score(
        self, windows: Sequence[Window]
    ) -> Iterator[tuple[int, NDArray[np.float32] | ScoredWindow]]:
        """Yields the number and the losses, in nats (float32, (len(ids) - asked_from,)), of each
        window that requests any, in any order; NaN or infinite where the model fails. A scorer with
        candidates yields a `ScoredWindow` in place of the losses."""


class TransformersScorer:
    """A transformers causal language model in this process.

    Sequences of different lengths are read together and never attend to each other: packed into
    rows with block-diagonal attention, or one per row, sorted by length.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch_tokens: int,
        width: int,
        batching: Batching = "auto",
        candidates: int = 0,
        sampled: bool = False,
        num_ids: int | None = None,
    ) -> None:
        """Args:
            batch_tokens: places of one forward pass.
            width: places of a packed row with a mask (attention costs its square).
            batching: auto: packed if the attention takes sequence boundaries (flash attention),
                else by length, because a mask costs more than the padding that it saves.
            candidates: K, the number of ids kept for each token (`teacher.candidates`).
            sampled: draws the less likely candidates at random (`teacher.sampled`).
            num_ids: of the tokenizer. Further ids of the head, which pad it, are no candidates.
        Raises: ConfigError if packing is requested and the model reads across the boundaries.
        """
        self.model = model
        self.head: Head = language_head(model)
        self.device: torch.device = model.get_input_embeddings().weight.device
        self._is_asynchronous = self.device.type == "cuda"
        self.batch_tokens = batch_tokens
        self.candidates = candidates
        self.is_sampled: bool = sampled
        self.gives_entropy: bool = candidates > 0
        self._num_ids = num_ids
        attention = attention_of(model)
        self._takes_boundaries = "flash" in attention
        self._width = batch_tokens if self._takes_boundaries else width
        should_pack = batching == "packed" or (batching == "auto" and self._takes_boundaries)
        with_mask = not self._takes_boundaries
        fits = not with_mask or mask_fits(model, width)
        self.is_packed: bool = should_pack and fits and keeps_apart(model, with_mask=with_mask)
        if should_pack and not self.is_packed:
            reason = (
                f"{type(model).__name__} with {attention} attention does not keep packed documents "
                "apart (or has a sliding window)"
            )
            if batching == "packed":
                raise ConfigError(f"teacher.batching: {reason}; use buckets")
            print(f"teacher.batching: auto: {reason}; using buckets", file=sys.stderr)

    def batches(self, lengths: Sequence[int]) -> Iterator[Rows]:
        """Groups sequences of these lengths into batches of rows."""
        if self.is_packed:
            return packs(lengths, self.batch_tokens, self._width)
        return buckets(lengths, self.batch_tokens)

    def score(
        self, windows: Sequence[Window]
    ) -> Iterator[tuple[int, NDArray[np.float32] | ScoredWindow]]:
        """Yields number and losses of each window that requests any, batch by batch.

        The device computes one batch while the host takes the previous one: losses are copied when
        they are ready, before the next pass.
        """
        started: Iterator[Any] = map(self._start_pass, self.passes(windows))
        if self._is_asynchronous:
            # Looking one pass ahead starts it before this one is waited for. On a CPU a pass is
            # over when it has started, so looking ahead would only delay its losses.
            started = (earlier for earlier, _ in pairwise(chain(started, [None])))
        for one_pass, waits in started:
            ends = np.cumsum(one_pass.counts)[:-1]
            columns = [np.split(wait(), ends) for wait in waits]
            for number, *values in zip(one_pass.numbers, *columns, strict=True):
                yield number, ScoredWindow(*values) if self.candidates else values[0]

    def passes(
        self, windows: Sequence[Window], samples: Sequence[int] | None = None
    ) -> Iterator[Pass]:
        """Prepares the forward passes for the windows.

        Args: samples: the number in the run of the sample that each window belongs to, so that
            other candidates are sampled each time a text is read. Without it, as for a store, the
            same ones are sampled each time.
        """
        sequences = [causal_shift(window.ids)[0] for window in windows]
        to_score = windows_to_score(windows)
        for batch in self.batches([len(sequences[number]) for number in to_score]):
            rows = [[to_score[index] for index in row] for row in batch]
            layout = lay_out(rows, sequences)
            numbers = [number for row in rows for number in row]
            places, labels, uniform = [], [], []
            for number, first_place in zip(numbers, layout.first_places, strict=True):
                ids = windows[number].ids
                _, is_asked = causal_shift(np.arange(len(ids)) >= windows[number].asked_from)
                places.append(first_place + np.flatnonzero(is_asked))
                labels.append(causal_shift(ids)[1][is_asked])
                if self.is_sampled:
                    sample_number = None if samples is None else samples[number]
                    uniform.append(_uniform(ids, sample_number)[is_asked])
            counts = list(map(len, labels))
            yield Pass(
                numbers,
                self.on_host(layout.ids_BT),
                *self._pieces(layout),
                self.on_host(np.concatenate(places)),
                self.on_host(np.concatenate(labels)),
                counts,
                uniform_N=self.on_host(np.concatenate(uniform)) if uniform else None,
            )

    def _pieces(self, layout: Layout) -> tuple[Tensor | None, dict[str, Any]]:
        """`Pass.piece_BT` and `Pass.boundaries` of a batch."""
        if not self.is_packed:
            return None, {}
        piece_BT = torch.from_numpy(layout.piece_BT)
        options = boundaries(self.model, piece_BT) if self._takes_boundaries else {}
        return self.on_host(layout.piece_BT), {
            name: self.on_host(value.numpy()) if isinstance(value, Tensor) else value
            for name, value in options.items()
        }

    def on_host(self, values: NDArray[Any]) -> Tensor:
        """A host tensor for the device, in pinned memory for a GPU."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def _start_pass(self, one_pass: Pass) -> tuple[Pass, list[Callable[[], NDArray[Any]]]]:
        """Starts a pass and the copies of its results, each of which is waited for by a call."""
        if self.candidates:
            results: tuple[Tensor, ...] = self.losses_and_candidates(one_pass)
        else:
            results = (self.losses(one_pass),)
        return one_pass, list(map(start_copy_to_host, results))

    @torch.inference_mode()
    def losses(self, one_pass: Pass) -> Tensor:
        """(N,) float32 on the device: the loss of each requested label."""
        states_NH = self.asked_states(one_pass)
        return chunked_nll(states_NH, self.head, _to(states_NH.device, one_pass.labels_N))

    @torch.inference_mode()
    def losses_and_candidates(self, one_pass: Pass) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes, in one pass over the logits, the columns of a `ScoredWindow` on the device:
        (N,) losses (float32); (N, K) ids (int32) and (N, K) codes (uint8) of the candidates, none
        for a token without a finite loss; and (N,) codes of the entropies (uint8)."""
        states_NH = self.asked_states(one_pass)
        labels_N = _to(states_NH.device, one_pass.labels_N)
        shape = len(states_NH), self.candidates
        nll_N, entropy_N, label_N = states_NH.new_empty(3, len(states_NH), dtype=torch.float32)
        top_NK = states_NH.new_empty(shape, dtype=torch.float32)
        ids_NK = states_NH.new_empty(shape, dtype=torch.int32)
        uniform_N = (
            None if one_pass.uniform_N is None else _to(self.head.device, one_pass.uniform_N)
        )
        for logits_CV, place in logits_of_chunks(states_NH, self.head):
            labels_C1 = labels_N[place, None].to(logits_CV.device)
            used_CV = logits_CV[:, : self._num_ids]  # ids that pad the head are no candidates
            candidates = most_likely(used_CV, self.candidates)
            label_N[place] = logits_CV.gather(1, labels_C1).squeeze(1)
            top_C1 = candidates[0][:, :1]
            if used_CV.shape != logits_CV.shape:
                top_C1 = top_C1.maximum(logits_CV[:, self._num_ids :].amax(1, keepdim=True))
            result = losses_and_entropies_(logits_CV, labels_C1, self._num_ids, top_C1)
            nll_N[place], entropy_N[place] = result.nll_C, result.entropy_C
            if uniform_N is not None:  # the logits are now exponentials
                candidates = sample_(used_CV, top_C1, candidates, uniform_N[place])
            top_NK[place], ids_NK[place] = candidates
        # The logit of a label and its loss add up to the logarithm of the sum of exponentials.
        codes_NK = device_codes_of(top_NK - (label_N + nll_N)[:, None])
        ids_NK = ids_NK.masked_fill(codes_NK == NONE, -1)
        return nll_N, ids_NK, codes_NK, device_codes_of(-entropy_N)

    @torch.inference_mode()
    def asked_states(self, one_pass: Pass) -> Tensor:
        """(N, H): the states that predict the requested labels. Padding is at the end of rows, so
        no requested token attends to it."""
        extra: dict[str, Any] = {
            name: _to(self.device, value) if isinstance(value, Tensor) else value
            for name, value in one_pass.boundaries.items()
        }
        if one_pass.piece_BT is not None:
            piece_BT = _to(self.device, one_pass.piece_BT)
            extra |= isolation(piece_BT, with_mask=not self._takes_boundaries)
        states_BTH = hidden_states(self.model, _to(self.device, one_pass.ids_BT), **extra)
        # A model that is spread over devices leaves its states on the device of the last layer.
        return states_BTH.flatten(0, 1)[_to(states_BTH.device, one_pass.places_N)]


def _uniform(ids: NDArray[np.int64], sample_number: int | None) -> NDArray[np.float32]:
    """(len(ids) - 1,) a pseudo-random number in [0, 1) for each token of a window but the first.

    It is a hash of the window, the place, the two ids before it and the number of the sample. So it
    is the same in any batch and process, and differs between texts that begin alike.
    """
    previous = ids[:-1].astype(np.uint64)
    second_previous = np.append(np.uint64(0), previous)[:-1]
    seed = zlib.crc32(ids.astype("<i8").tobytes())
    if sample_number is not None:
        seed = zlib.crc32(sample_number.to_bytes(8, "little"), seed)
    mixed = np.arange(len(previous), dtype=np.uint64) ^ np.uint64(seed << 32 | 1 << 31)
    for values in (previous, second_previous):  # the factors of SplitMix64
        mixed = (mixed ^ values) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    # 24 bits, as many as float32 holds exactly: a number that rounds up to 1 would be out of range.
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def start_copy_to_host(values_N: Tensor) -> Callable[[], NDArray[Any]]:
    """Starts copying values to the host. The returned function waits for the copy, but not for
    later work on the device."""
    if not values_N.is_cuda:
        return lambda: values_N.cpu().numpy()
    on_host_N = torch.empty(values_N.shape, dtype=values_N.dtype, pin_memory=True)
    on_host_N.copy_(values_N, non_blocking=True)
    # An event of this copy: synchronizing the stream would also wait for the next pass.
    copy_is_done = torch.cuda.current_stream(values_N.device).record_event()

    def wait() -> NDArray[Any]:
        copy_is_done.synchronize()
        return on_host_N.numpy()

    return wait


def _to(device: torch.device, values: Tensor) -> Tensor:
    return values.to(device, non_blocking=True)

"""What a teacher's most likely tokens say of a student's: probabilities of buckets.

Where both sides start a token, the teacher's candidates there are added up over the buckets of both
vocabularies (`vocagno.buckets`), and the student's distribution is compared with these sums.

B: rows, T: predicted tokens of a row, n: student tokens of all rows, M: the teacher's tokens of all
their pieces, K: candidates of a token, S: places for buckets at a token, K for each store.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from vocagno.alignment.mapping import starts
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, require
from vocagno.guidance.bucket_loss import BucketTable, on_device
from vocagno.guidance.mappings import DocumentPairs
from vocagno.system.files import digest
from vocagno.teacher.candidates import Candidates
from vocagno.tokens.buckets import Boundaries, Buckets

NO_BUCKET = -1
_LEAST_ASKED = 0.002
_LEAST_LEFT = 0.1
_AT_A_TIME = 1 << 21
"""Numbers that stored candidates are added up in at a time: K x K for each token."""
_DEFINITION = 3
"""Of the targets: those of another one are of another table."""


class Targets(NamedTuple):
    """The teacher's probabilities of buckets at n tokens; what is missing from 1 is "other"."""

    bucket_nS: Tensor
    """int32: the number of a bucket, all stores counted through; -1 for none. A token that is not
    compared has none at all."""
    mass_nS: Tensor
    """float32, 0 for none."""
    entropy_nR: Tensor
    """float32, nats: the entropy of the whole distribution of each of R teachers at the token; NaN
    if it is not known."""


class BucketTargets:
    """Makes `Targets` of the candidates of one store, or of several teachers' stores of a text."""

    def __init__(
        self,
        buckets: Buckets | Sequence[Buckets],
        num_candidates: int | Sequence[int],
        shares: Sequence[float] | None = None,
    ) -> None:
        """Args:
            buckets: of the student's tokenizer and each teacher's (`vocagno.buckets`).
            num_candidates: K of each store.
            shares: how much each counts; default: all alike.
        Raises: BucketError for tokenizers that share too little; ConfigError for buckets of several
            students, and for shares that are not positive.
        """
        self.buckets: list[Buckets] = [buckets] if isinstance(buckets, Buckets) else [*buckets]
        places = [num_candidates] if isinstance(num_candidates, int) else [*num_candidates]
        given = [1.0] * len(places) if shares is None else [*shares]
        require(
            len(self.buckets) == len(places) == len(given) > 0,
            f"buckets of {len(self.buckets)} teachers, candidates of {len(places)} and "
            f"{len(given)} shares; give one for each",
        )
        require(
            all(0 < share < math.inf for share in given),
            f"shares: expected numbers above 0, got {given}",
        )
        require(min(places) > 0, "the scores have no candidates; score with `--candidates`")
        students = {one.fingerprints[0] for one in self.buckets}
        require(len(students) == 1, "the buckets are of several student tokenizers")
        for one in self.buckets:
            one.check()
        self.student: str = students.pop()
        self.teachers: list[str] = [one.fingerprints[1] for one in self.buckets]
        self.first: list[int] = np.cumsum([0, *(one.count for one in self.buckets)]).tolist()
        of_student = np.stack([one.student for one in self.buckets])
        members, counts = [], []
        for ids in of_student:
            order = np.argsort(ids, kind="stable")
            members.append(order[np.count_nonzero(ids < 0) :])
            counts.append(np.bincount(ids[ids >= 0]))
        self._of_teachers: list[Tensor] = [torch.from_numpy(one.teacher) for one in self.buckets]
        tables = of_student, *(one.teacher for one in self.buckets)
        of_each = [share / sum(given) for share in given]
        corrected = [one.boundaries is not None for one in self.buckets]
        self.table: BucketTable = BucketTable(
            torch.from_numpy(np.concatenate(members)),
            torch.from_numpy(np.cumsum(np.concatenate([[0], *counts]))),
            places,
            tuple(of_each),
            of_student.shape[1],
            digest(
                str([_DEFINITION, places, of_each, self.teachers, corrected]),
                *(one.tobytes() for one in tables),
            ),
        )

    def rows(
        self,
        pairs: DocumentPairs,
        ids: NDArray[np.int64],
        tokens: NDArray[np.int32],
        number: int = 0,
    ) -> NDArray[np.int64]:
        """(n, 3) the teacher token that starts where each student token does, if both are in one
        bucket, else -1; its id; and that of the student token before in the piece, -1 for none.

        Where they are not, what follows in the text decided, which no token tells; or
        one side has a space of its own there, as before the first word of a text.

        Args:
            ids: (n,) the student's. tokens: (M,) the teacher's. number: of the store.
        """
        num_threads = None if get_worker_info() is None else 1
        found = starts(pairs.student, pairs.teacher, **pairs.cu_seqlens, num_threads=num_threads)
        of = self.buckets[number]
        mine = _looked_up(of.student, ids)
        theirs = _looked_up(of.teacher, tokens)[np.maximum(found, 0)] if len(tokens) else mine
        rows = np.where((found >= 0) & (mine >= 0) & (mine == theirs), found, -1)
        before = np.append(-1, ids)[:-1]
        before[pairs.student_cu[:-1][np.diff(pairs.student_cu) > 0]] = -1
        real = np.append(tokens, -1)[rows]
        return np.stack([rows, real, before], 1).astype(np.int64)

    def of_stored(
        self, pairs: DocumentPairs, ids: NDArray[np.int64], candidates: Candidates, number: int = 0
    ) -> Targets:
        """`Targets` of all n tokens, from a store's candidates of the M. Args: as `rows`."""
        rows_n3 = torch.from_numpy(self.rows(pairs, ids, candidates.tokens, number))
        ids_MK, mass_MK, entropy_M = map(
            torch.from_numpy,
            (candidates.ids, candidates.probabilities, candidates.nats_of_entropy),
        )
        size = max(1, _AT_A_TIME // self.table.places[number] ** 2)
        parts = [
            self.at(rows, ids_MK, mass_MK, entropy_M, number) for rows in torch.split(rows_n3, size)
        ]
        return Targets(*map(torch.cat, zip(*parts, strict=True)))

    def at(
        self, rows_n3: Tensor, ids_MK: Tensor, mass_MK: Tensor, entropy_M: Tensor, number: int = 0
    ) -> Targets:
        """`Targets` at the teacher's tokens of `rows`, on any device.

        Candidates that cannot follow the student token before them (`Boundaries`) have none, but
        for the one that did, and those below 0.002. The others and "other" are divided by their
        sum; where that is less than 0.1, nothing is compared. The pairs are looked up on the host,
        for which a live teacher's are copied.

        Args:
            rows_n3: (..., 3) as from `rows`.
            ids_MK, mass_MK, entropy_M: as `Candidates.ids`, `probabilities`, `nats_of_entropy`.
            number: of the teacher, where there are several.
        """
        shape = (*rows_n3.shape[:-1], self.table.places[number])
        rows_n, real_n, before_n = rows_n3.flatten(0, -2).unbind(-1)
        if not len(ids_MK):
            nothing = rows_n.new_full(shape, NO_BUCKET, dtype=torch.int32)
            unknown = entropy_M.new_full((*shape[:-1], 1), torch.nan)
            return Targets(nothing, torch.zeros(shape, device=rows_n.device), unknown)
        ids_nK, mass_nK = ids_MK[rows_n.clamp_min(0)], mass_MK[rows_n.clamp_min(0)]
        bucket_of = on_device(self._of_teachers[number], rows_n.device)
        is_known = (ids_nK >= 0) & (ids_nK < len(bucket_of)) & (rows_n >= 0)[:, None]
        bucket_nK = torch.where(is_known, bucket_of[torch.where(is_known, ids_nK, 0).long()], -1)
        boundaries = self.buckets[number].boundaries
        if boundaries is not None:
            is_asked_nK = is_known & (before_n >= 0)[:, None] & (mass_nK >= _LEAST_ASKED)
            is_asked_nK &= ids_nK != real_n[:, None]
            is_out_nK = _impossible(boundaries, before_n, ids_nK, is_asked_nK)
            left_n1 = 1 - (mass_nK * is_out_nK).sum(1, keepdim=True)
            is_out_nK |= left_n1 < _LEAST_LEFT
            mass_nK = mass_nK.masked_fill(is_out_nK, 0.0) / left_n1.clamp_min(_LEAST_LEFT)
            bucket_nK = bucket_nK.masked_fill(is_out_nK, NO_BUCKET)
        bucket_nK, mass_nK = _added_up(bucket_nK, mass_nK)
        bucket_nK = torch.where(bucket_nK >= 0, bucket_nK + self.first[number], NO_BUCKET)
        entropy_n = entropy_M[rows_n.clamp_min(0)].masked_fill(rows_n < 0, torch.nan)
        at_tokens = bucket_nK.int().view(shape), mass_nK.view(shape)
        return Targets(*at_tokens, entropy_n.view(*shape[:-1], 1))


def check_targets(
    guidance: GuidanceConfig,
    targets: BucketTargets | None,
    student: str | None = None,
    teacher: str | None = None,
    number: int = 0,
) -> None:
    """Compares the buckets with what they are to be used with.

    Args: student, teacher: `TokenSpans.fingerprint` of the student's tokenizer and of that of the
        scores, if known. number: of the teacher, where there are several.
    Raises: ConfigError if a method needs buckets and has none, has some without need, or has those
        of other tokenizers.
    """
    if guidance.needs_candidates == (targets is None):
        raise ConfigError(
            f"targets: guidance.method: {guidance.method} needs "
            + ("BucketTargets(vocagno.buckets(STUDENT, TEACHER), K)" if targets is None else "none")
        )
    if targets is None:
        return
    pairs = {"student": (student, targets.student), "teacher": (teacher, targets.teachers[number])}
    for side, (given, known) in pairs.items():
        require(
            given in (None, known),
            f"targets: their buckets are of another {side} tokenizer; make buckets of this one "
            "with vocagno.buckets",
        )


def _looked_up(table: NDArray[np.int32], ids: NDArray[Any]) -> NDArray[np.int32]:
    """The bucket of each id; -1 for ids beyond the table."""
    return np.append(table, np.int32(NO_BUCKET))[np.where(ids < len(table), ids, len(table))]


def _impossible(
    boundaries: Boundaries, before_n: Tensor, ids_nK: Tensor, is_asked_nK: Tensor
) -> Tensor:
    """(n, K) which candidates cannot follow the student token before them."""
    is_out_nK = torch.zeros_like(is_asked_nK)
    before, ids = before_n[:, None].expand_as(ids_nK)[is_asked_nK], ids_nK[is_asked_nK].long()
    can_follow = boundaries.remain(before.cpu().numpy(), ids.cpu().numpy())
    is_out_nK[is_asked_nK] = torch.from_numpy(~can_follow).to(is_out_nK.device)
    return is_out_nK


def _added_up(bucket_nK: Tensor, mass_nK: Tensor) -> tuple[Tensor, Tensor]:
    """Each bucket of a row once, at its first place, with the sum of its probabilities."""
    same_nKK = bucket_nK[:, :, None] == bucket_nK[:, None, :]
    sums_nK = (same_nKK * mass_nK[:, None, :]).sum(2)
    is_first_nK = ~same_nKK.tril(-1).any(2) & (bucket_nK >= 0)
    return torch.where(is_first_nK, bucket_nK, NO_BUCKET), torch.where(is_first_nK, sums_nK, 0.0)

"""Streams parallel to a token file: the teacher's loss of each token, a weight, and candidates.

    losses = BakedLosses("baked")
    losses.check("corpus.bin")
    losses.losses[first:stop], losses.weights[first:stop]
    losses.candidates[first:stop], losses.candidate_mass[first:stop]

Reading needs only NumPy. `vocagno bake` writes them.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vocagno.integrations.token_files import TokenFileError, blocks_hash, sample_hash, tokens_path
from vocagno.system.files import atomic_file, digest, write_json

if TYPE_CHECKING:
    from vocagno.guidance.bucket_loss import BucketTable

MANIFEST = "baked.json"
LOSSES = "teacher_loss.npy"
WEIGHTS = "weight.npy"
CANDIDATES = "candidate.npy"
CANDIDATE_MASS = "candidate_mass.npy"
BUCKETS = "buckets.npy"
VERSION = 1
_HEADER_BYTES = 128
"""The size of the header of a `.npy` of one or two dimensions; NumPy pads it to 64 bytes."""


class BakedLosses:
    """The baked streams of one token file, memory-mapped.

    Opening reads the manifest, and up to 4 MiB of each stream. A copy in another process (a worker
    of a DataLoader) opens the files itself.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises: TokenFileError for a folder that is missing, unfinished, damaged, or of another
        version."""
        self.folder: Path = Path(folder)
        self.manifest: dict[str, Any] = read_manifest(self.folder)
        """The facts of the token file, the tokenizer, the scores and the rule; the counts."""
        self.losses: NDArray[np.float16] = self._map(LOSSES, np.float16)
        """(num_tokens,) the teacher's loss of each token in nats; NaN where it has none."""
        self._weights: NDArray[np.uint8] | None = None
        if WEIGHTS in self.manifest["files"]:
            self._weights = self._map(WEIGHTS, np.uint8)
        self._over_buckets: tuple[NDArray[np.int32], NDArray[np.float16]] | None = None
        if CANDIDATES in self.manifest["files"]:
            width = (self.manifest["made_from"]["candidates"]["count"],)
            mass = self._map(CANDIDATE_MASS, np.float16, width)
            self._over_buckets = self._map(CANDIDATES, np.int32, width), mass

    def __len__(self) -> int:
        return len(self.losses)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        # Absolute: a worker may have another working folder. Pickling the arrays would copy them.
        return type(self), (self.folder.absolute(),)

    @property
    def weights(self) -> NDArray[np.uint8]:
        """(num_tokens,) the weight of each token in the loss: 0 to 255 stand for 0 to 1.

        Raises: TokenFileError if no weights were baked.
        """
        if self._weights is None:
            raise TokenFileError(f"{self.folder}: has no weights; bake with --weights")
        return self._weights

    @property
    def has_candidates(self) -> bool:
        """True if candidates were baked."""
        return self._over_buckets is not None

    @property
    def candidates(self) -> NDArray[np.int32]:
        """(num_tokens, K) the buckets of the teacher's candidates for each token; -1 for none.

        They are the values of `GuidedBatch.candidates`.

        Raises: TokenFileError if no candidates were baked.
        """
        return self._candidates()[0]

    @property
    def candidate_mass(self) -> NDArray[np.float16]:
        """(num_tokens, K) the teacher's probabilities of the buckets in `candidates`.

        Raises: TokenFileError if no candidates were baked.
        """
        return self._candidates()[1]

    @property
    def bucket_key(self) -> str:
        """The `BucketTable.key` of the buckets, for `GuidedBatch`.

        Raises: TokenFileError if no candidates were baked.
        """
        self._candidates()
        return str(self.manifest["buckets"]["key"])

    def buckets(self) -> "BucketTable":
        """The table of the student's ids in each bucket, for `GuidedBatch`; needs torch.

        Raises: TokenFileError if no candidates were baked, and for a damaged file.
        """
        import torch

        from vocagno.guidance.bucket_loss import BucketTable

        count, path = self.candidates.shape[1], self.folder / BUCKETS
        about = self.manifest["buckets"]
        # The whole file, as it is small and read once: a damaged table would give other ids, not an
        # error.
        if not path.is_file() or digest(path.read_bytes()) != about["hash"]:
            raise TokenFileError(
                f"{path}: is missing or damaged; copy it again, or delete the folder and bake again"
            )
        begins, members = np.split(np.load(path, allow_pickle=False), [about["count"] + 1])
        size, key = about["vocabulary_size"], about["key"]
        return BucketTable(
            torch.from_numpy(members), torch.from_numpy(begins), [count], (1.0,), size, key
        )

    def _candidates(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        if self._over_buckets is None:
            raise TokenFileError(f"{self.folder}: has no candidates; bake with --teacher_tokenizer")
        return self._over_buckets

    def check(self, token_file: str | Path, *, whole: bool = False) -> None:
        """Checks that a token file is the one that was baked.

        Args:
            token_file: the path that `vocagno bake` took.
            whole: True compares the hash of all tokens. Otherwise the size and up to 4 MiB in 64
                places of the file are compared, which takes milliseconds.
        Raises: TokenFileError for another file.
        """
        path, expected = tokens_path(Path(token_file)), self.manifest["token_file"]
        if not path.is_file():
            raise TokenFileError(f"{path}: this token file does not exist")
        # The name of the file is not compared: files are moved and linked.
        is_same = path.stat().st_size == expected["bytes"]
        is_same = is_same and sample_hash(path) == expected["sample_hash"]
        if is_same and whole:
            tokens_hash = blocks_hash(path, expected["first_byte"], expected["block_bytes"])
            is_same = tokens_hash == expected["hash"]
        if not is_same:
            raise TokenFileError(
                f"{path}: is not the token file that {self.folder} was baked for "
                f"({expected['name']}, {expected['bytes']:,} bytes), or has changed; bake it again"
            )

    def _map(self, name: str, dtype: Any, width: tuple[int, ...] = ()) -> NDArray[Any]:
        """Memory-maps a stream. Raises: TokenFileError for one that is not as it was written."""
        path, count = self.folder / name, self.manifest["token_file"]["tokens"]
        expected = _HEADER_BYTES + count * np.dtype((dtype, width)).itemsize
        # Not only the size: a stream of the right size with other content once passed.
        size = path.stat().st_size if path.is_file() else None
        # None: who rewrites a stream may omit its hash, as the bench of the Megatron bridge does.
        written_hash = self.manifest.get("samples", {}).get(name)
        if size != expected or written_hash not in (None, sample_hash(path)):
            state = "is missing" if size is None else f"has {size:,} bytes"
            if size == expected:
                state = "has changed"
            raise TokenFileError(
                f"{path}: {state}; expected {expected:,} bytes as they were written: an incomplete "
                "copy? Copy it again, or delete the folder and bake again"
            )
        return np.memmap(path, dtype, mode="r", offset=_HEADER_BYTES, shape=(count, *width))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of baked streams.

    Raises: TokenFileError if it is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        state = "is unfinished, or has no baked losses" if folder.is_dir() else "does not exist"
        raise TokenFileError(f"{folder}: {state} (no {MANIFEST})")
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        check = fields.pop("check")
        version = fields["version"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TokenFileError(f"{path}: not a manifest of baked losses: {error!r}") from error
    if check != _check(fields):
        raise TokenFileError(f"{path}: damaged (its check differs); bake again")
    if version != VERSION:
        raise TokenFileError(
            f"{path}: format version {version}, but this vocagno reads {VERSION}; bake again"
        )
    return fields


def write_manifest(folder: Path, fields: dict[str, Any]) -> None:
    """Writes the manifest atomically; the streams must be in their places."""
    versioned = {"version": VERSION, **fields}
    write_json(folder / MANIFEST, {**versioned, "check": _check(versioned)})


def stream_header(dtype: np.dtype[Any], count: int) -> bytes:
    """The header of a `.npy` of `count` values, each an array if `dtype` has a shape."""
    shape = (count, *dtype.shape)
    text = f"{{'descr': {dtype.base.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    # Written by hand: there is no array yet, and processes write values at places behind these
    # bytes.
    size = _HEADER_BYTES - 10  # magic, version and this size come before it
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + f"{text:<{size - 1}}\n".encode()


def write_buckets(folder: Path, partial: Path, table: "BucketTable") -> dict[str, Any]:
    """Writes the buckets to a file: where the ids of each bucket begin, then the ids.

    Args: partial: the folder of the file until it is finished.
    Returns: the facts of the file for the manifest.
    """
    values = np.concatenate([table.begins.numpy(), table.members.numpy()])
    with atomic_file(folder / BUCKETS, partial) as file:
        np.save(file, values)
    return {
        "count": len(table.begins) - 1,
        "vocabulary_size": table.vocabulary_size,
        "key": table.key,
        "hash": digest((folder / BUCKETS).read_bytes()),
    }


def _check(fields: dict[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True))

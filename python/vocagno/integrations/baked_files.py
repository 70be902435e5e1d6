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
from vocagno.system.files import appearing, digest, write_json

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
"""Size of the header of a `.npy` of one or two dimensions: NumPy fills it to a multiple of 64."""


class BakedLosses:
    """The baked streams of one token file, memory-mapped: opening reads the manifest, and up to 4
    MiB of each stream.

    A copy in another process (a worker of a DataLoader) opens the files itself.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises: TokenFileError for a folder that is missing, unfinished, damaged, or of another
        version."""
        self.folder: Path = Path(folder)
        self.manifest: dict[str, Any] = read_manifest(self.folder)
        """Token file, tokenizer, scores, rule and counts."""
        self.losses: NDArray[np.float16] = self._mapped(LOSSES, np.float16)
        """(num_tokens,) the teacher's loss of each token in nats; NaN where it has none."""
        self._weights: NDArray[np.uint8] | None = None
        if WEIGHTS in self.manifest["files"]:
            self._weights = self._mapped(WEIGHTS, np.uint8)
        self._over_buckets: tuple[NDArray[np.int32], NDArray[np.float16]] | None = None
        if CANDIDATES in self.manifest["files"]:
            width = (self.manifest["made_from"]["candidates"]["count"],)
            mass = self._mapped(CANDIDATE_MASS, np.float16, width)
            self._over_buckets = self._mapped(CANDIDATES, np.int32, width), mass

    def __len__(self) -> int:
        return len(self.losses)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return type(self), (self.folder.absolute(),)

    @property
    def weights(self) -> NDArray[np.uint8]:
        """(num_tokens,) how much each token trains the student: 0 to 255 for 0 to 1.

        Raises: TokenFileError if no weights were baked.
        """
        if self._weights is None:
            raise TokenFileError(f"{self.folder}: has no weights; bake with --weights")
        return self._weights

    @property
    def has_candidates(self) -> bool:
        """Whether candidates were baked."""
        return self._over_buckets is not None

    @property
    def candidates(self) -> NDArray[np.int32]:
        """(num_tokens, K) the buckets of the teacher's candidates for each token, -1 for none: as
        `GuidanceTensors.candidates`.

        Raises: TokenFileError if no candidates were baked.
        """
        return self._candidates()[0]

    @property
    def candidate_mass(self) -> NDArray[np.float16]:
        """(num_tokens, K) the teacher's probabilities of these buckets. Raises: as `candidates`."""
        return self._candidates()[1]

    @property
    def bucket_key(self) -> str:
        """`BucketTable.key` of these buckets, for `GuidanceTensors`. Raises: as `candidates`."""
        self._candidates()
        return str(self.manifest["buckets"]["key"])

    def buckets(self) -> "BucketTable":
        """The student's ids in these buckets, for `GuidanceTensors`; needs torch.

        Raises: TokenFileError if no candidates were baked, and for a damaged file.
        """
        import torch

        from vocagno.guidance.bucket_loss import BucketTable

        count, path = self.candidates.shape[1], self.folder / BUCKETS
        about = self.manifest["buckets"]
        if not path.is_file() or digest(path.read_bytes()) != about["hash"]:
            raise TokenFileError(
                f"{path}: is missing or damaged; copy it again, or delete the folder and bake again"
            )
        begins, members = np.split(np.load(path, allow_pickle=False), [about["count"] + 1])
        given = torch.from_numpy(members), torch.from_numpy(begins)
        return BucketTable(*given, [count], (1.0,), about["vocabulary_size"], about["key"])

    def _candidates(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        if self._over_buckets is None:
            raise TokenFileError(f"{self.folder}: has no candidates; bake with --teacher_tokenizer")
        return self._over_buckets

    def check(self, token_file: str | Path, *, whole: bool = False) -> None:
        """Refuses another token file than the one that was baked.

        Args:
            token_file: as for `vocagno bake`.
            whole: compares the hash of all tokens. Otherwise the size and up to 4 MiB in 64 places
                of the file are compared, which takes milliseconds.
        Raises: TokenFileError.
        """
        path, expected = tokens_path(Path(token_file)), self.manifest["token_file"]
        if not path.is_file():
            raise TokenFileError(f"{path}: this token file does not exist")
        is_same = path.stat().st_size == expected["bytes"]
        is_same = is_same and sample_hash(path) == expected["sample_hash"]
        if is_same and whole:
            found = blocks_hash(path, expected["first_byte"], expected["block_bytes"])
            is_same = found == expected["hash"]
        if not is_same:
            raise TokenFileError(
                f"{path}: is not the token file that {self.folder} was baked for "
                f"({expected['name']}, {expected['bytes']:,} bytes), or has changed; bake it again"
            )

    def _mapped(self, name: str, dtype: Any, width: tuple[int, ...] = ()) -> NDArray[Any]:
        path, count = self.folder / name, self.manifest["token_file"]["tokens"]
        expected = _HEADER_BYTES + count * np.dtype((dtype, width)).itemsize
        found = path.stat().st_size if path.is_file() else None
        known = self.manifest.get("samples", {}).get(name)  # none in those of 0.1.0
        if found != expected or known not in (None, sample_hash(path)):
            state = "is missing" if found is None else f"has {found:,} bytes"
            if found == expected:
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
    """The header of a `.npy` of `count` values, each of which may be an array (`dtype.shape`)."""
    shape = (count, *dtype.shape)
    text = f"{{'descr': {dtype.base.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    size = _HEADER_BYTES - 10  # magic, version and this size come before it
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + f"{text:<{size - 1}}\n".encode()


def write_buckets(folder: Path, partial: Path, table: "BucketTable") -> dict[str, Any]:
    """Writes where the ids of each bucket begin, then the ids; what the manifest says of them.

    Args: partial: the folder of an unfinished file.
    """
    values = np.concatenate([table.begins.numpy(), table.members.numpy()])
    with appearing(folder / BUCKETS, partial) as file:
        np.save(file, values)
    return {
        "count": len(table.begins) - 1,
        "vocabulary_size": table.vocabulary_size,
        "key": table.key,
        "hash": digest((folder / BUCKETS).read_bytes()),
    }


def _check(fields: dict[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True))

"""Token files of other trainers: what is read, and what is refused."""

import struct
from itertools import pairwise

import numpy as np
import pytest

from folders import LFS_POINTER, LFS_WORDS
from token_streams import write_datatrove, write_megatron, write_numpy
from vocagno.integrations import token_files
from vocagno.integrations.token_files import (
    TokenFileError,
    blocks_hash,
    open_token_file,
    sample_hash,
)

EOS = 2
DOCUMENTS = [[5, 6, EOS], [7, EOS], [EOS], [8, 9, 300, 11, EOS], [12, EOS]]
FLAT = np.concatenate(DOCUMENTS)


def as_documents(file, size):
    """The documents of each batch."""
    documents = []
    for first, boundaries in file.batches(0, file.num_tokens, size):
        assert boundaries[0] == 0
        for start, stop in pairwise(boundaries.tolist()):
            documents.append(file.ids[first + start : first + stop].tolist())
    return documents


def opened(tmp_path, kind):
    if kind == "megatron":
        return open_token_file(write_megatron(tmp_path / "corpus", DOCUMENTS))
    if kind == "sentences":
        return open_token_file(write_megatron(tmp_path / "c", DOCUMENTS, "i4", 3, modes=True))
    if kind == "datatrove":
        return open_token_file(write_datatrove(tmp_path / "corpus.ds", DOCUMENTS, "u4"))
    path = write_numpy(tmp_path / "corpus.npy", DOCUMENTS)
    if kind == "eos":
        return open_token_file(path, eos_id=EOS)
    if kind == "plain":
        path.write_bytes(FLAT.astype("<u4").tobytes())
        return open_token_file(path, eos_id=EOS, dtype="uint32")
    borders = tmp_path / "borders.npy"
    np.save(borders, np.cumsum([0, *map(len, DOCUMENTS)]).astype(np.uint64))
    return open_token_file(path, boundaries=borders)


KINDS = ("megatron", "sentences", "datatrove", "eos", "plain", "boundaries")


@pytest.mark.parametrize("kind", KINDS)
def test_documents_come_whole_and_in_order(tmp_path, kind):
    file = opened(tmp_path, kind)
    assert (file.num_tokens, file.ids.tolist()) == (len(FLAT), FLAT.tolist())
    for size in range(1, len(FLAT) + 2):
        assert as_documents(file, size) == DOCUMENTS
    starts = np.cumsum([0, *map(len, DOCUMENTS)]).tolist()
    for token in range(len(FLAT) + 3):
        expected = min((start for start in starts if start >= token), default=len(FLAT))
        assert file.first_start(token) == expected


@pytest.mark.parametrize("name", ["corpus", "corpus.bin", "corpus.idx"])
def test_megatron_files_by_any_name(tmp_path, name):
    write_megatron(tmp_path / "corpus", DOCUMENTS)
    assert open_token_file(tmp_path / name).path == tmp_path / "corpus.bin"


def test_a_separator_far_away_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "_BLOCK", 3)
    assert as_documents(opened(tmp_path, "eos"), 1) == DOCUMENTS
    monkeypatch.setattr(token_files, "_LONGEST", 5)
    path = write_numpy(tmp_path / "none.npy", [[1] * 50])
    file = open_token_file(path, eos_id=EOS)
    with pytest.raises(TokenFileError, match=r"id 2 is not in the 5 tokens after 4; is the end-of"):
        as_documents(file, 4)


def test_text_behind_the_last_separator_is_a_document(tmp_path):
    file = open_token_file(write_numpy(tmp_path / "c.npy", [[4, EOS, 5]]), eos_id=EOS)
    assert as_documents(file, 1) == [[4, EOS], [5]]


def test_what_datatrove_writes(tmp_path):
    pytest.importorskip("datatrove")
    from datatrove.io import get_datafolder
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    folder = get_datafolder(str(tmp_path))
    for size in (2, 4):
        megatron_file = MegatronTokenizedFile(folder, f"m{size}", token_size=size)
        other = TokenizedFile(folder, f"d{size}.ds", token_size=size)
        for ids in DOCUMENTS:
            megatron_file.write(ids)
            other.write(ids, None)
        megatron_file.close()
        other.close()
        for name in (f"m{size}", f"d{size}.ds"):
            assert as_documents(open_token_file(tmp_path / name), 3) == DOCUMENTS


INDEX = struct.Struct("<9sQBQQ")


def with_header(**fields):
    def change(data):
        names = ("magic", "version", "code", "sequences", "entries")
        header = dict(zip(names, INDEX.unpack(data[: INDEX.size]), strict=True)) | fields
        return INDEX.pack(*header.values()) + data[INDEX.size :]

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("c.bin", lambda d: d[:-1], r"c.bin: has 25 bytes, but c.idx says 26 \(13 tokens"),
        ("c.bin", lambda d: d + d, "written with another type or another index"),
        ("c.bin", lambda d: b"", "has 0 bytes"),
        ("c.bin", lambda d: LFS_POINTER, f"c.bin: {LFS_WORDS}"),
        ("c.idx", lambda d: d[:-3], "c.idx: has .* its header says .*: truncated or damaged"),
        ("c.idx", lambda d: d[:20], "c.idx: not an index of Megatron"),
        ("c.idx", lambda d: b"TNTIDX" + d[6:], "not an index of Megatron .*TNTIDX"),
        ("c.idx", with_header(version=2), "version 2 of the index; expected 1"),
        ("c.idx", with_header(code=6), r"type code 6 is not of integers \(1, 2, 3, 4, 5, 8\)"),
        ("c.idx", with_header(code=4), "not follow one another as int32 ids: .*another type"),
        (
            "c.idx",
            lambda d: d[:34] + b"\xff" * 4 + d[38:],
            "sequences do not follow one another as uint16",
        ),
        ("c.idx", lambda d: d[:-8] + bytes(8), "its documents do not hold all 5 sequences"),
        ("c.idx", lambda d: d[:-48] + d[-40:-32] + d[-40:], "its documents do not hold"),
        ("c.ds", lambda d: d[:-1], "c.ds: has 25 bytes, expected 2 or 4 for each of the 13 tokens"),
        ("c.ds", lambda d: d[:-2], "truncated, or of another index"),
        ("c.ds.index", lambda d: d[:-1], "c.ds.index: truncated"),
        ("c.ds.index", lambda d: b"", "c.ds.index: truncated"),
        ("c.ds.index", lambda d: d[8:16] + d[:8] + d[16:], "its document ends decrease"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, change, message):
    megatron = write_megatron(tmp_path / "c", DOCUMENTS)
    datatrove = write_datatrove(tmp_path / "c.ds", DOCUMENTS)
    damaged = tmp_path / name
    damaged.write_bytes(change(damaged.read_bytes()))
    with pytest.raises(TokenFileError, match=message):
        open_token_file(datatrove if ".ds" in name else megatron)


def test_missing_files_are_named(tmp_path):
    for name in ("c", "c.bin", "c.ds", "c.npy", "c.txt"):
        with pytest.raises(TokenFileError, match=f"{name}: this token file does not exist"):
            open_token_file(tmp_path / name)
        (tmp_path / name).touch()
    for name, message in (
        ("c.bin", "c.idx: the index of"),
        ("c.ds", "c.ds.index: the index of"),
        ("c.txt", "expected a token file of Megatron"),
    ):
        with pytest.raises(TokenFileError, match=message):
            open_token_file(tmp_path / name)


def test_a_npy_without_what_it_needs_is_refused(tmp_path):
    """A wrong type, boundary or header would give other documents of the same bytes, without an
    error."""
    path = write_numpy(tmp_path / "c.npy", DOCUMENTS)
    borders = write_numpy(tmp_path / "b.npy", [[0, 5, 14]], "i8")

    def refused(message, at=path, **options):
        with pytest.raises(TokenFileError, match=message):
            open_token_file(at, **options)

    refused("give either --eos or --boundaries")
    refused("give either --eos or --boundaries", eos_id=EOS, boundaries=borders)
    refused("NumPy's header says the type of the ids; omit --dtype", eos_id=EOS, dtype="uint16")
    refused("has 13 tokens, but .*b.npy ends at 14", boundaries=borders)
    write_numpy(borders, [[0, 14, 13]], "i8")
    refused("expected places that begin with 0 and never decrease", boundaries=borders)
    plain = tmp_path / "plain.npy"
    plain.write_bytes(bytes(7))
    refused("without NumPy's header; give --dtype", plain, eos_id=EOS)
    refused("has 7 bytes, not tokens of 2 bytes each", plain, eos_id=EOS, dtype="uint16")
    path.write_bytes(path.read_bytes()[:-1])
    refused("not a .npy, or truncated", eos_id=EOS)
    for array in (np.zeros((2, 2), int), np.zeros(3), np.zeros(0, int)):
        np.save(path, array)
        refused(r"expected integers of shape \(n,\), got", eos_id=EOS)
    np.save(path, np.array([{}]), allow_pickle=True)
    refused("not a .npy, or truncated", eos_id=EOS)
    with pytest.raises(TokenFileError, match="--eos: is for"):
        open_token_file(write_datatrove(tmp_path / "c.ds", DOCUMENTS), eos_id=EOS)


def test_hashes_change_with_the_part_that_they_cover(tmp_path):
    """Sees a change of one byte that leaves the hash of its part as it was."""
    path = tmp_path / "large"
    data = np.random.default_rng(0).bytes((5 << 20) + 1)
    path.write_bytes(data)
    first = sample_hash(path), blocks_hash(path, 3, 1000)
    assert (sample_hash(path), blocks_hash(path, 3, 1000)) == first
    path.write_bytes(data[:-1] + b"x")
    assert sample_hash(path) != first[0]
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    assert blocks_hash(path, 3, 1000) != first[1]
    path.write_bytes(b"xyz" + data[3:])
    assert blocks_hash(path, 3, 1000) == first[1]

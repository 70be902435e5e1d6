"""Baked streams: written in parts, read with NumPy only."""

import copy
import json
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from imports import modules_after
from vocagno.data.store.shards import StoreError
from vocagno.integrations.baked_files import LOSSES, MANIFEST, WEIGHTS, BakedLosses
from vocagno.integrations.baking.parts import BakedParts
from vocagno.integrations.token_files import TokenFileError, blocks_hash, sample_hash
from vocagno.system.files import digest

COUNT, PART = 10, 4
VALUES = np.arange(COUNT, dtype=np.float16)


def write(folder, tokens, streams=(LOSSES, WEIGHTS), made_from=None, stop_before=None):
    """Streams of a token file of ten ids, in three parts."""
    types = {name: {LOSSES: np.float16, WEIGHTS: np.uint8}[name] for name in streams}
    parts = BakedParts(folder, COUNT, 3, types, made_from or {"tokenizer": "a"})
    data = tokens.read_bytes()

    def make(name):
        first = parts.names.index(name) * PART
        if name == stop_before:
            raise KeyboardInterrupt
        for stream in streams:
            parts.write(stream, first, VALUES[first : first + PART].astype(types[stream]))
        block = data[2 * first : 2 * (first + PART)]
        parts.note(name, hash=digest(block), counts={"tokens": PART}, refused=[])

    def fields(tokens_hash, counts):
        about = {"name": tokens.name, "bytes": len(data), "first_byte": 0, "tokens": COUNT}
        about |= {"sample_hash": sample_hash(tokens), "hash": tokens_hash, "block_bytes": 2 * PART}
        return {"token_file": about, "counts": dict(counts)}

    parts.make(make, lambda name: None)
    parts.finish(fields)
    return BakedLosses(folder)


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "corpus.bin"
    path.write_bytes(np.arange(COUNT, dtype=np.uint16).tobytes())
    return path


def test_streams_are_plain_npy_files(tmp_path, tokens):
    baked = write(tmp_path / "out", tokens)
    assert len(baked) == COUNT
    assert baked.manifest["counts"] == {"tokens": 3 * PART}
    assert not (tmp_path / "out" / ".making").exists()
    for name, values in ((LOSSES, baked.losses), (WEIGHTS, baked.weights)):
        read = np.load(tmp_path / "out" / name)
        assert read.dtype == values.dtype == {LOSSES: np.float16, WEIGHTS: np.uint8}[name]
        np.testing.assert_array_equal(read, VALUES.astype(read.dtype))
        np.testing.assert_array_equal(values, read)
    assert baked.losses[2:4].tolist() == [2, 3]


@pytest.mark.parametrize("copied", [copy.copy, lambda baked: pickle.loads(pickle.dumps(baked))])
def test_copies_open_the_files_themselves(tmp_path, tokens, copied):
    baked = write(tmp_path / "out", tokens)
    assert len(pickle.dumps(baked)) < 300
    again = copied(baked)
    assert isinstance(again.losses, np.memmap)
    np.testing.assert_array_equal(again.losses, baked.losses)


def test_weights_that_were_not_baked_are_asked_for(tmp_path, tokens):
    baked = write(tmp_path / "out", tokens, [LOSSES])
    with pytest.raises(TokenFileError, match="has no weights; bake with --weights"):
        baked.weights  # noqa: B018


def test_another_token_file_is_refused(tmp_path, tokens):
    baked = write(tmp_path / "out", tokens)
    for whole in (False, True):
        baked.check(tokens, whole=whole)
        baked.check(tmp_path / "corpus.idx", whole=whole)
        baked.check(str(tmp_path / "corpus"), whole=whole)
    expected = baked.manifest["token_file"]
    assert expected["hash"] == blocks_hash(tokens, 0, 2 * PART)
    data = tokens.read_bytes()
    for changed in (data + b"12", data[:-1] + b"x", data[2:]):
        tokens.write_bytes(changed)
        with pytest.raises(TokenFileError, match=r"is not the token file .*corpus.bin, 20 bytes"):
            baked.check(tokens)
    tokens.write_bytes(data)
    expected["hash"] = "0"
    baked.check(tokens)
    with pytest.raises(TokenFileError, match="is not the token file"):
        baked.check(tokens, whole=True)
    with pytest.raises(TokenFileError, match="other: this token file does not exist"):
        baked.check(tmp_path / "other")


def test_damaged_folders_are_refused(tmp_path, tokens):
    """A stream that was not copied whole may have its full size, with zeros at the end: weights of
    0."""
    folder = tmp_path / "out"
    with pytest.raises(TokenFileError, match="out: does not exist"):
        BakedLosses(folder)
    folder.mkdir()
    with pytest.raises(TokenFileError, match="is unfinished, or has no baked losses"):
        BakedLosses(folder)
    write(folder, tokens)
    whole = (folder / LOSSES).read_bytes()
    (folder / LOSSES).write_bytes(whole[:-1])
    with pytest.raises(TokenFileError, match=r"teacher_loss.npy: has 147 bytes; expected 148"):
        BakedLosses(folder)
    (folder / LOSSES).unlink()
    with pytest.raises(TokenFileError, match=r"teacher_loss.npy: is missing"):
        BakedLosses(folder)
    (folder / LOSSES).write_bytes(whole[:-8] + bytes(8))  # preallocated, and not all of it copied
    with pytest.raises(TokenFileError, match=r"teacher_loss.npy: has changed"):
        BakedLosses(folder)
    (folder / LOSSES).write_bytes(whole)
    text = (folder / MANIFEST).read_text()
    for changed, message in (
        ("{", "not a manifest of baked losses"),
        ("[]", "not a manifest of baked losses"),
        (text.replace("corpus.bin", "Corpus.bin"), "damaged"),
    ):
        (folder / MANIFEST).write_text(changed)
        with pytest.raises(TokenFileError, match=message):
            BakedLosses(folder)
    fields = json.loads(text) | {"version": 2}
    del fields["check"]
    fields["check"] = digest(json.dumps(fields, sort_keys=True))
    (folder / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(TokenFileError, match="format version 2, but this vocagno reads 1"):
        BakedLosses(folder)


def test_a_stopped_run_resumes_and_nothing_else_does(tmp_path, tokens):
    expected = write(tmp_path / "whole", tokens)
    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write(folder, tokens, stop_before="part-000001")
    assert not list(folder.glob("*.npy"))
    with pytest.raises(StoreError, match=r"losses of another tokenizer \(a, now b\) are being"):
        write(folder, tokens, made_from={"tokenizer": "b"})
    assert write(folder, tokens).losses.tolist() == expected.losses.tolist()
    for name in (LOSSES, WEIGHTS, MANIFEST):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_killed_between_renames_resumes(tmp_path, tokens, monkeypatch):
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("vocagno.integrations.baking.parts.flush_folder", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(folder, tokens)
    (folder / WEIGHTS).rename(folder / ".making" / WEIGHTS)  # as if one rename had happened
    assert (folder / LOSSES).is_file()
    assert write(folder, tokens).weights.tolist() == VALUES.tolist()


def test_reading_needs_numpy_only():
    loaded = modules_after("from vocagno.integrations.baked_files import BakedLosses")
    assert not loaded & {"torch", "pyarrow", "tokenizers", "transformers", "tqdm", "filelock"}

"""`vocagno bake`, as a user types it."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from families import TEXTS
from token_streams import documents_of, write_datatrove, write_losses, write_megatron, write_numpy
from vocagno.integrations.baked_files import BakedLosses
from vocagno.integrations.token_files import TokenFileError


@pytest.fixture
def files(tmp_path, tokenizers, tokenizer_files):
    """Token files of every format with the same documents; the options that all take."""
    texts = [f"{number}: {text}" for number, text in enumerate(TEXTS)]
    write_losses(tmp_path / "scores", tokenizers["byte-level"], texts)
    documents = documents_of(tokenizers["llama"], texts)
    write_megatron(tmp_path / "megatron", documents, "i4", 2)
    write_datatrove(tmp_path / "trove.ds", documents)
    write_numpy(tmp_path / "header.npy", documents, "u4")
    (tmp_path / "plain.npy").write_bytes(np.concatenate(documents).astype("<u2").tobytes())
    np.save(tmp_path / "places.npy", np.cumsum([0, *map(len, documents)]))
    return ["--scores", tmp_path / "scores", "--tokenizer", tokenizer_files / "student.json"]


def bake(tmp_path, files, tokens, *options):
    """The words of the command."""
    return "bake", tmp_path / tokens, *files, "--out", tmp_path / f"{tokens}.baked", *options


INPUTS = {
    "megatron": [],
    "megatron.bin": [],
    "trove.ds": [],
    "header.npy": ["--eos", "</s>"],
    "plain.npy": ["--dtype", "uint16"],
}


def test_every_format_gives_the_same_streams(tmp_path, files, cli):
    streams = []
    for tokens, options in INPUTS.items():
        result = cli.json(*bake(tmp_path, files, tokens, *options, "--weights"))
        assert result["documents"] == len(TEXTS)
        assert result["missing_documents"] == 0
        baked = BakedLosses(tmp_path / f"{tokens}.baked")
        baked.check(tmp_path / tokens, whole=True)
        streams.append((baked.losses.tobytes(), baked.weights.tobytes()))
    command = bake(tmp_path, files, "header.npy", "--boundaries", tmp_path / "places.npy")
    assert "holds losses of another token file" in cli.error(*command)
    words = cli(*command, "--out", tmp_path / "places", "--weights")
    assert "window_max_loss" not in words.err
    low = [*command, "--weights", "--guidance.window_max_loss", "0.7", "--out", tmp_path / "low"]
    assert "warning: window_max_loss: 0.7 is below 1 nat a byte" in cli(*low).err
    printed = words.out
    places = BakedLosses(tmp_path / "places")
    streams.append((places.losses.tobytes(), places.weights.tobytes()))
    assert len(set(streams)) == 1
    assert "missing_documents  0" in printed


def test_options_say_what_the_losses_are(tmp_path, files, cli):
    streams = {}
    for name, options in {
        "default": [],
        "max": ["--unit", "token", "--aggregation", "max"],
        "mean": ["--aggregation", "mean"],
        "group": ["--unit", "group"],
    }.items():
        cli(*bake(tmp_path, files, "trove.ds", "--out", tmp_path / name, *options))
        streams[name] = BakedLosses(tmp_path / name).losses.tobytes()
    assert streams["default"] == streams["max"]
    assert len(set(streams.values())) == 3


def test_candidates_are_of_the_tokenizer_of_the_scores(
    tmp_path, files, tokenizers, tokenizer_files, cli
):
    options = "--cache", tmp_path / "cache", "--teacher_tokenizer"
    student, teacher = (tokenizer_files / f"{name}.json" for name in ("student", "teacher"))
    message = cli.error(*bake(tmp_path, files, "trove.ds", *options, teacher))
    assert "has no candidates; score with --candidates" in message
    texts = [f"{number}: {text}" for number, text in enumerate(TEXTS)]
    write_losses(tmp_path / "with", tokenizers["byte-level"], texts, candidates=3)
    options = "--scores", tmp_path / "with", *options
    message = cli.error(*bake(tmp_path, files, "trove.ds", *options, student))
    assert f"--teacher_tokenizer: {student} is not that of the scores" in message
    assert not (tmp_path / "trove.ds.baked").exists()
    assert "with_candidates" in cli(*bake(tmp_path, files, "trove.ds", *options, teacher)).out
    baked = BakedLosses(tmp_path / "trove.ds.baked")
    assert baked.candidates.shape == (len(baked), 3)
    message = cli.error(*bake(tmp_path, files, "trove.ds", *options[:2]))
    assert "holds losses of another candidates" in message
    (baked.folder / "buckets.npy").write_bytes(b"damaged")
    with pytest.raises(TokenFileError, match=r"buckets\.npy: is missing or damaged"):
        baked.buckets()
    cli(*bake(tmp_path, files, "trove.ds", "--out", tmp_path / "plain"))
    with pytest.raises(TokenFileError, match="has no candidates; bake with --teacher_tokenizer"):
        BakedLosses(tmp_path / "plain").buckets()


@pytest.mark.parametrize(
    ("tokens", "flags", "message"),
    [
        ("trove.ds", ["--eos", "</s>"], "--eos: is for a .npy without --boundaries; omit it"),
        ("trove.ds", ["--dtype", "uint16"], "--dtype: is for .npy;"),
        ("trove.ds", ["--dtype", "int8"], "int8"),
        ("header.npy", ["--eos", "42"], "'42' is not a token"),
        ("header.npy", ["--eos", "▁x"], "--eos: '▁x' is an ordinary token"),
        ("trove.ds", ["--unit", "group", "--aggregation", "mean"], "a group adds its losses up"),
        ("trove.ds", ["--min_coverage", "1.5"], "--min_coverage must be in [0, 1], got 1.5"),
        ("trove.ds", ["--guidance.window_max_loss", "1"], "sets the rule of the weights; add --we"),
        (
            "trove.ds",
            ["--weights", "--guidance.top_fraction", "0.4"],
            "guidance.top_fraction: which tokens it keeps depends on the student's losses",
        ),
        ("trove.ds", ["--scores", "none"], "this store of scores does not exist"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_baked(tmp_path, files, cli, tokens, flags, message):
    shown = cli.error(*bake(tmp_path, files, tokens, *flags)).splitlines()
    (line,) = (line for line in shown if "error" in line)
    assert message in line
    assert not (tmp_path / f"{tokens}.baked").exists()

"""What identifies a model in a folder, its weights and its tokenizer; the device of a process."""

import json
import os
import sys

import pytest

torch = pytest.importorskip("torch")

from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.models import loading
from vocagno.tokens.token_spans import TokenSpans


@pytest.mark.parametrize("in_place", [True, False])
def test_other_weights_of_the_same_size_and_time_are_others(tmp_path, monkeypatch, in_place):
    """As after a copy that keeps times, or a restored backup."""
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    time = weights.stat().st_mtime_ns
    config, read = TeacherConfig(model=str(weights.parent)), []
    digest = loading.file_digest
    monkeypatch.setattr(loading, "file_digest", lambda file: read.append(file) or digest(file))

    def identity():
        return loading.weights_identity(config, tmp_path / "cache")

    first = identity()
    assert identity() == first
    assert read == [weights]
    other = weights if in_place else weights.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(time, time))
    other.replace(weights)
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (3, time)
    assert identity() != first
    weights.write_bytes(b"one")
    assert identity() == first


@pytest.mark.skipif(sys.platform != "linux", reason="its names of files are bytes")
def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    identities = []
    for name in ("model", os.fsdecode(b"model-\xff")):
        weights = tmp_path / name / "model.safetensors"
        weights.parent.mkdir()
        weights.write_bytes(b"one")
        config = TeacherConfig(model=str(weights.parent))
        identities.append(loading.weights_identity(config, tmp_path / "cache"))
    assert identities[0] == identities[1]


def test_the_gpus_of_apple_are_not_used(monkeypatch):
    """They have no float64."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert loading.local_device() == torch.device("cpu")


@pytest.mark.parametrize(("share", "is_refused"), [(0.95, False), (0.7, True)])
def test_a_tokenizer_with_fewer_merges_is_another(tokenizers, tmp_path, share, is_refused):
    """All of its tokens have the ids of the model's, but its sequences are others."""
    own = json.loads(tokenizers["byte-level"].to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(own))
    vocabulary, merges = own["model"]["vocab"], own["model"]["merges"]
    gone = merges[-round(len(vocabulary) * (1 - share)) :]
    own["model"]["merges"] = merges[: -len(gone)]
    for pair in gone:
        del vocabulary["".join(pair)]
    (tmp_path / "fewer.json").write_text(json.dumps(own))
    spans = TokenSpans(tmp_path / "fewer.json")
    if not is_refused:
        loading.check_own_tokenizer(spans, str(tmp_path), "student")
        return
    with pytest.raises(ConfigError, match=f"{len(gone):,} of the .* is not the tokenizer of"):
        loading.check_own_tokenizer(spans, str(tmp_path), "student")

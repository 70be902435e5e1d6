"""What identifies the weights of a model in a folder, and the device of a process."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

from vocagno.config.teacher import TeacherConfig
from vocagno.models import loading


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

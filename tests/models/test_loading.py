"""The device of a process."""

import pytest

torch = pytest.importorskip("torch")

from vocagno.models.loading import local_device


def test_the_gpus_of_apple_are_not_used(monkeypatch):
    """They have no float64."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert local_device() == torch.device("cpu")

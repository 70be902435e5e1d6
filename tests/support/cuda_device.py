"""The device of the tests that need CUDA; in a rehearsal, on a CPU, all of them run but for what
only CUDA has."""

import os
from contextlib import contextmanager

import pytest
import torch

REHEARSES = os.environ.get("VOCAGNO_REHEARSE_GPU") == "1" and not torch.cuda.is_available()
DEVICE = "cpu" if REHEARSES else "cuda"

needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or REHEARSES), reason="no CUDA device (make gpu has one)"
    ),
]


def sync_debug(mode):
    """What happens at an operation that makes the host wait for the device: `default` or `error`.
    A CPU never waits."""
    if not REHEARSES:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_waiting():
    """Inside, an operation that makes the host wait for the device is an error."""
    sync_debug("error")
    try:
        yield
    finally:
        sync_debug("default")

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


@contextmanager
def no_waiting():
    """Makes an operation that has the host wait for the device an error. A CPU never waits."""
    if REHEARSES:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

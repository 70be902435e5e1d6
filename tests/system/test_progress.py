"""How far some work is, and how long it will take."""

import pytest

from vocagno.system import progress as module
from vocagno.system.progress import Progress

pytest.importorskip("tqdm")


def test_the_time_left_is_that_of_whole_batches(capsys, monkeypatch):
    """Of work in batches of four, each of 20 s, all of a batch is told of at its end. Eight of
    twelve pieces are left after 20 s: the first line once said 220 s, the time of a batch for each
    piece."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with Progress("scoring", 12, unit="B", show=True) as progress:
        for done in range(1, 9):
            now[0] += 20 if done % 4 == 1 else 0
            progress.at(done)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "scoring: 8 % (1 of 12 B)"  # no batch is known to be whole
    assert second == "scoring: 41 % (5 of 12 B), 0:00:35 left"

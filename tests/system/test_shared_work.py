"""Work shared among processes: done once, taken over from the dead, never waited for in vain."""

import multiprocessing
import os
import time

import pytest

pytest.importorskip("filelock")

from vocagno.system.shared_work import share


def make_in(folder, name, seconds):
    time.sleep(seconds)
    (folder / f"{name}.tmp{os.getpid()}").write_text(str(os.getpid()))
    (folder / f"{name}.tmp{os.getpid()}").rename(folder / name)
    with (folder / "log").open("a") as log:
        log.write(f"{name} {os.getpid()}\n")


def work(folder, names, seconds):
    share(
        names,
        folder,
        done=lambda name: (folder / name).exists(),
        make=lambda name: make_in(folder, name, seconds),
    )


@pytest.mark.slow
def test_three_processes_do_each_item_once(tmp_path):
    names = [f"item{i}" for i in range(12)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(tmp_path, names, 0.05)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    done = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(name for name, _ in done) == sorted(names)


def test_an_error_is_raised_and_the_item_stays_free(tmp_path):
    def fail(name):
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        share(["a"], tmp_path, done=lambda name: False, make=fail)
    work(tmp_path, ["a"], 0)
    assert (tmp_path / "a").exists()

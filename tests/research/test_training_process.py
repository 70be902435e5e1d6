"""The training processes of a study: what they leave, and what becomes of them without it."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from filelock import FileLock

from research.study.carrying_out import carry_out
from research.study.plan import Run, read_plan
from research.study.training_process import error_line, train
from runs import with_research
from slurm import write_program
from vocagno.system.shared_work import is_locked

pytestmark = pytest.mark.slow


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_training_ends_with_a_study_that_is_killed(tmp_path, plan_file):
    """Soon, and with its state saved; the folder is free for the next study."""
    plan = plan_file(seeds=[0], common={"train.steps": 20_000, "train.log_every": 1})
    command = [sys.executable, "-m", "research.study", str(plan)]
    study = subprocess.Popen([*command, "--out", str(tmp_path / "study")], env=with_research())
    run = tmp_path / "study" / "runs" / "cpt-0"
    try:
        until(lambda: (run / "metrics.jsonl").is_file())
    finally:
        os.kill(study.pid, signal.SIGKILL)
        study.wait()
    until(lambda: "saved. Run the same command again" in (run / "log.txt").read_text())
    assert list((run / "checkpoints").glob("step_*"))
    lock = FileLock(run / ".lock")
    lock.acquire(timeout=60)
    lock.release()


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, plan_file, trained, capsys):
    plan, out = read_plan(plan_file(seeds=[0])), tmp_path / "study"
    (out / "runs" / "cpt-0").mkdir(parents=True)
    runs = []
    study = threading.Thread(target=lambda: runs.extend(carry_out(plan, out, {}, show=False)))
    with FileLock(out / "runs" / "cpt-0" / ".lock"):
        study.start()
        until(lambda: (out / ".locks" / "cpt-0").is_file() and is_locked("cpt-0", out))
        study.join(timeout=1.5)
        assert study.is_alive()
        assert trained == []
    study.join(timeout=60)
    assert trained == ["cpt-0", "top-20-0"]
    assert [run.cpu_seconds for run in runs] == [10.0, 11.0]
    words = f"cpt-0: waiting for another process, which is training in {out / 'runs' / 'cpt-0'}\n"
    assert words in capsys.readouterr().err


def test_the_error_is_found_in_a_log():
    progress = "training: 40 % (2 of 5 steps)\rWriting model shards: 100%\n\n"
    assert error_line(f"a\nerror: data.train: no such file\n{progress}") == (
        "error: data.train: no such file"
    )
    trace = "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: no memory\n"
    assert error_line(f"{trace}{progress}") == "torch.OutOfMemoryError: no memory"
    assert error_line(progress) == "Writing model shards: 100%"
    assert error_line("") == "its log is empty"


def test_a_failing_run_quotes_its_own_error(tmp_path, monkeypatch):
    """Not that of an earlier attempt."""
    write_program(tmp_path / "python", "#!/bin/sh\necho step 1\nkill -KILL $$\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "log.txt").write_text("error: of an earlier attempt\n")
    with pytest.raises(
        ValueError, match=r": training was killed by SIGKILL: step 1 \(.*log\.txt\)"
    ):
        train(Run("cpt", 0, tmp_path, []))

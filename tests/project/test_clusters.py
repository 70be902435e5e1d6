"""The files for clusters in `configs/clusters`; those for Slurm run with docs/scale.md, too."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from folders import contents
from runs import environment
from skypilot import read_task, run_task
from slurm import write_program, write_slurm
from vocagno.cli.app import main
from warm_python import executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for bash"),
]
CLUSTERS = Path(__file__).parents[2] / "configs" / "clusters"
TASK = CLUSTERS / "score.sky.yaml"


@pytest.fixture
def node(tmp_path):
    """The environment of a node: a home of its own, and `vocagno` on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "vocagno", f'#!/bin/bash\nexec {executable()} -m vocagno "$@"\n')
    return environment(HOME=str(tmp_path), PATH=f"{programs}:{os.environ['PATH']}")


def test_the_task_for_skypilot_scores_every_part(tmp_path, teacher_model, node):
    """Two nodes with two GPUs each make the store of one process."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(6):  # each file begins a shard
        write_corpus(folder / f"{number}.jsonl", TEXTS[number : number + 3])
    variables = {"CORPUS": str(folder), "STORE": "s3://SCORES", "TEACHER": str(teacher_model)}
    task = read_task(TASK, variables)
    assert re.fullmatch(r"\w+:\d+", task["resources"]["accelerators"])
    assert task["file_mounts"]["~/store"]["source"] == "${STORE}"
    ended = run_task(task, nodes=2, gpus=2, env=node)
    assert [run.returncode for run in ended] == [0, 0], ended
    parts = [part for run in ended for part in re.findall(r"^part +(\S+)$", run.stdout, re.M)]
    assert sorted(parts) == ["1/4", "2/4", "3/4", "4/4"]
    store = tmp_path / "store" / "scores"
    assert main(["scores", "finish", str(store)]) == 0
    command = ["score", str(folder), "--teacher.model", str(teacher_model)]
    expected = tmp_path / "expected"
    assert main([*command, "--cache", str(tmp_path / "c"), "--out", str(expected)]) == 0
    assert contents(store) == contents(expected)


def test_a_part_that_fails_fails_the_task(tmp_path, node):
    task = read_task(TASK, {"CORPUS": "nowhere", "STORE": "s3://SCORES", "TEACHER": "nobody"})
    (ended,) = run_task(task, nodes=1, gpus=2, env=node)
    assert ended.returncode == 2
    assert ended.stderr.count("nowhere: no such file or folder") == 2
    with pytest.raises(AssertionError, match="unknown or missing"):
        read_task(TASK, {"CORPUS": "corpus"})


@pytest.mark.parametrize(
    ("options", "parts"), [([], range(1, 9)), (["--array=3"], [3]), (["--array=2,7-8"], [2, 7, 8])]
)
def test_the_array_for_slurm_and_some_of_its_parts(tmp_path, options, parts):
    """A part keeps its number and the number of parts when it runs again."""
    write_slurm(tmp_path)
    write_program(tmp_path / "vocagno", '#!/bin/bash\necho "$@"\n')
    ended = subprocess.run(
        ["sbatch", *options, CLUSTERS / "score.sbatch", "c.jsonl", "store", "--teacher.model", "t"],
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr.splitlines() == [
        f"score c.jsonl --out store --shards {part}/8 --teacher.model t" for part in parts
    ]


SAVES = """
import os, signal, sys, time
from pathlib import Path

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
Path("new").write_text(str(os.getppid()))
Path("new").rename("launcher")
while not asked:
    time.sleep(0.01)
time.sleep(3)
Path("saved").touch()
sys.exit(75)
"""


@pytest.mark.parametrize("seconds", [120, 1])
def test_torchrun_leaves_the_time_that_the_file_for_slurm_says(tmp_path, seconds):
    """In place of train.py stands a program that saves for three seconds after SIGTERM."""
    script = (CLUSTERS / "train.sbatch").read_text()
    assert "--signal=TERM@120\n" in script
    assert script.count("SHUTDOWN_TIMEOUT=120") == 1
    (tmp_path / "script").write_text(script.replace("TIMEOUT=120", f"TIMEOUT={seconds}"))
    (tmp_path / "train.py").write_text(SAVES)
    write_slurm(tmp_path)
    write_program(tmp_path / "scontrol", "#!/bin/bash\necho localhost\n")
    launch = f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    write_program(tmp_path / "torchrun", launch)
    variables = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "1"}
    variables |= {"SLURM_JOB_NODELIST": "node", "SLURM_GPUS_ON_NODE": "1"}
    process = subprocess.Popen(
        ["bash", "script", "my.yaml"],
        cwd=tmp_path,
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}", **variables),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "launcher").exists():
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(int((tmp_path / "launcher").read_text()), signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors[-3000:]
    assert (tmp_path / "saved").exists() == (seconds == 120), errors[-3000:]

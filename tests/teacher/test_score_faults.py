"""What a store of scores survives: kills at every point, signals, full disks, several writers."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import repeats
from folders import contents

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import free_port, started, wait_for_shards
from vocagno.teacher.score_store import ScoreStore
from warm_python import executable

SCRIPTS = Path(__file__).parents[1] / "support" / "processes"
POINTS = ("write", "before fsync", "after fsync", "before rename", "after rename")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX"),
]


def command(corpus, store, cache, teacher_model, candidates=4):
    arguments = ["score", corpus, "--out", store, "--cache", cache, "--json"]
    arguments += ["--candidates", candidates, "--sampled"]
    return [str(word) for word in (*arguments, "--teacher.model", teacher_model)]


def score_with_kills(shard_bytes, kills, folder, arguments):
    """What each of the attempts left, the last of which is not killed."""
    (folder / "kills.json").write_text(json.dumps(kills))
    script = SCRIPTS / "killed_scoring.py"
    process = started(executable(), script, shard_bytes, folder / "kills.json", *arguments)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-2000:]
    records = [json.loads(line) for line in output.splitlines() if '"kill"' in line]
    assert len(records) == len(kills) + 1, errors[-2000:]
    return records


@pytest.mark.parametrize("candidates", repeats([0, 4], [4]))
def test_kills_change_no_byte(tmp_path, teacher_model, candidates):
    """At every point of writing, and at any time of it; each resumed, the last one to the end. A
    hundred under `make chaos`.

    Every document is a shard, so that there are enough of them.
    """
    corpus = write_corpus(
        tmp_path / "c.jsonl", [f"{i}: {TEXTS[i % 6][:30]}" for i in range(repeats(400, 150))]
    )
    cache = tmp_path / "cache"
    undisturbed = command(corpus, tmp_path / "whole", cache, teacher_model, candidates)
    (whole,) = score_with_kills(1, [], tmp_path, undisturbed)
    assert whole["exit"] == 0
    rng = random.Random(0)
    kills = [[POINTS[i % 5], 1 + (i // 5) % 2] for i in range(repeats(70, 15))]
    kills += [["time", rng.uniform(0, 0.1)] for _ in range(repeats(22, 5))]
    rng.shuffle(kills)
    manifests = [["manifest " + point, 0] for point in (*POINTS[:4], *POINTS[1:])]
    disturbed = command(corpus, tmp_path / "killed", cache, teacher_model, candidates)
    records = score_with_kills(1, kills + manifests, tmp_path, disturbed)
    died = [record for record in records if record["died"]]
    interrupted = [r for r in died if any(name.startswith(".shard-") for name in r["left"])]
    torn_manifest = [r for r in died if any(name.startswith(".manifest") for name in r["left"])]
    print(f"{len(died)} kills, {len(interrupted)} of them inside a shard")
    assert len(died) == len(kills) + len(manifests) == repeats(100, 28)
    assert len(interrupted) >= len(kills) // 2
    assert {record["kill"][0] for record in interrupted} >= set(POINTS[:4])
    assert len(torn_manifest) == 7
    assert records[-1]["exit"] == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    store = ScoreStore(tmp_path / "killed")
    assert list(store.damages()) == []
    assert store.candidates == candidates


@pytest.fixture
def job(tmp_path, teacher_model):
    """A corpus of 30 shards and the arguments that score it; its store if nobody disturbs it."""
    corpus = write_corpus(tmp_path / "c.jsonl", [f"{i}: {TEXTS[i % 6]}" for i in range(30)])

    def run(name="store", seconds=0.0):
        arguments = command(corpus, tmp_path / name, tmp_path / "cache", teacher_model)
        variables = {"SECONDS": str(seconds), "SHARD_BYTES": "1"}
        return started(executable(), SCRIPTS / "slow_command.py", *arguments, **variables)

    output, errors = run("whole").communicate(timeout=120)
    assert json.loads(output)["shards_made"] == 30, errors
    return run, tmp_path / "store", contents(tmp_path / "whole")


def test_processes_come_and_go(job):
    """Three share the shards; one is killed, a fourth joins; nothing is done twice or lost."""
    run, store, whole = job
    three = [run(seconds=0.3) for _ in range(3)]
    wait_for_shards(store, 3, three[0])
    three[1].kill()
    fourth = run(seconds=0.3)
    results = []
    for process in (three[0], three[2], fourth):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        results.append(json.loads(output))
    assert three[1].wait() == -signal.SIGKILL
    assert contents(store) == whole
    assert {result["tokens"] for result in results} == {results[0]["tokens"]}


def test_a_launcher_restarts_what_was_killed(tmp_path, job, teacher_model):
    """As `accelerate launch --max_restarts 1 -m vocagno score` on GPUs; on a CPU it is torchrun
    that starts three processes."""
    _, store, whole = job
    command_line = command(tmp_path / "c.jsonl", store, tmp_path / "cache", teacher_model)
    launcher = started(
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3"),
        *("--max-restarts", "1", "--master_addr", "127.0.0.1", "--master_port", free_port()),
        *(SCRIPTS / "slow_command.py", *command_line),
        **{"SECONDS": "0.3", "SHARD_BYTES": "1", "PYTHON_EXEC": executable()},
    )
    wait_for_shards(store, 3, launcher)
    workers = subprocess.run(
        ["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(workers[0]), signal.SIGKILL)
    output, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, errors[-2000:]
    assert len([line for line in output.splitlines() if line.startswith("{")]) == 1  # rank 0 alone
    assert contents(store) == whole


def test_sigterm_leaves_no_trace_and_says_unfinished(job):
    run, store, whole = job
    process = run(seconds=0.3)
    wait_for_shards(store, 2, process)
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert output == ""
    assert "stopped. Finished work is kept. Run the same command again" in errors
    left = contents(store)
    assert 2 <= len(left) < 30
    assert all(whole[name] == data for name, data in left.items())
    output, errors = run().communicate(timeout=60)
    result = json.loads(output)
    assert result["shards_made"] == 30 - len(left)
    assert contents(store) == whole


def test_counts_go_on_where_they_were_after_a_restart(job):
    run, store, _ = job
    process = run(seconds=0.1)
    wait_for_shards(store, 10, process)
    process.kill()
    process.communicate()
    there = len(list(store.glob("*.arrow")))
    process = run(seconds=0.6)
    _, errors = process.communicate(timeout=120)
    first = next(line for line in errors.splitlines() if line.startswith("scoring: "))
    documents = int(first.split(" of 30 documents")[0].split(", ")[-1].split()[-1])
    assert documents > there
    assert " tokens/s" in first
    assert " left" in first

"""Training runs for the tests: configuration files and processes started as users start them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import yaml

from tiny_models import SIZES
from warm_python import executable

TRAIN = Path(__file__).parents[2] / "train.py"


ARCHITECTURE = {"model_type": "llama", **SIZES}


def write_config(folder, corpus, tokenizer_files, teacher_model, /, **sections):
    """A small guided run in `folder`, by the paper's rule; sections override single options."""
    config = {
        "student": {
            "tokenizer": str(tokenizer_files / "student.json"),
            "eos": "</s>",
            "architecture": ARCHITECTURE,
        },
        "teacher": {"model": str(teacher_model)},
        "data": {"train": str(corpus), "seq_len": 32, "cache": str(folder / "cache")},
        "guidance": {"top_fraction": 0.4},
        "optimizer": {"lr": 1e-3, "min_lr": 1e-4},
        "train": {
            "steps": 6,
            "global_batch": 8,
            "micro_batch": 8,
            "log_every": 2,
            "checkpoint_every": 2,
        },
        "output": str(folder / "run"),
    }
    for section, options in sections.items():
        merges = isinstance(options, dict) and section in config
        config[section] = {**config[section], **options} if merges else options
    path = folder / f"{Path(config['output']).name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(processes, script, *arguments):
    """`train.py` (or a script like it) in one or several processes on this CPU."""
    launcher = []
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
        launcher += ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    return [executable(), *launcher, str(script), *map(str, arguments)]


def environment(**extra):
    """That of this process, on the CPU, without anything a launcher may have left."""
    left = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    clean = {name: value for name, value in os.environ.items() if name not in left}
    return (
        clean
        | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        | extra
    )


def with_research():
    """The same for a process that finds the package `research`, which is not installed."""
    paths = [str(TRAIN.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment(PYTHONPATH=os.pathsep.join(paths))


def train_here(path, *arguments):
    """In this process, which is quicker than starting one."""
    from accelerate.state import AcceleratorState

    from vocagno.training.main import main

    AcceleratorState._reset_state(reset_partial_state=True)
    before = signal.getsignal(signal.SIGTERM)
    try:
        return main(["--config", str(path), *map(str, arguments)])
    finally:
        signal.signal(signal.SIGTERM, before)


def score_here(corpus, model, out, *options):
    """Scores a corpus in this process; the folder of its scores, next to which the cache is."""
    from vocagno.cli.app import main

    command = ["score", corpus, "--teacher.model", model, "--out", out, *options]
    assert main([*map(str, command), "--cache", str(out.parent / "cache")]) == 0
    return out


def run(processes, script, *arguments, check=True, timeout=300, **extra):
    """Runs to the end; the finished process, with what it printed."""
    result = subprocess.run(
        command(processes, script, *arguments),
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and result.returncode != 0:
        raise AssertionError(f"exit {result.returncode}\n{result.stderr[-4000:]}")
    return result


def started(*words, **extra):
    """A process whose output is text in pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*map(str, words)], env=environment(**extra), **pipes)


def wait_for_shards(store, count, process):
    """Until the process has made so many of a store."""
    deadline = time.monotonic() + 100
    while len(list(store.glob("*.arrow"))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no shards appeared"
        time.sleep(0.01)


def metrics(folder):
    """The training entries and the validation entries of a run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return (
        [entry for entry in entries if "loss" in entry],
        [entry for entry in entries if "validation_loss" in entry],
    )


def cut_back(folder, copy):
    """A copy of a finished run as it was before its last checkpoint."""
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "final")
    steps = [path.name.removeprefix("step_") for path in (copy / "checkpoints").iterdir()]
    shutil.rmtree(copy / "checkpoints" / f"step_{max(map(int, steps))}")
    return copy


def final_weights(folder):
    """The parameters of the final model, by name."""
    from safetensors.torch import load_file

    return load_file(folder / "final" / "model.safetensors")


def same_weights(folder, other):
    """Whether two finished runs end in the same bits."""
    weights, other_weights = final_weights(folder), final_weights(other)
    return weights.keys() == other_weights.keys() and all(
        weights[name].equal(other_weights[name]) for name in weights
    )

"""A stand-in for SkyPilot."""

import subprocess

import yaml

FIELDS = frozenset(
    "name workdir num_nodes resources envs secrets file_mounts volumes setup run config".split()
)
"""Fields of a task that is no service (docs.skypilot.co, reference/yaml-spec, read in 2026)."""
RESOURCES = frozenset(
    "infra accelerators accelerator_args cpus memory instance_type use_spot disk_size disk_tier "
    "network_tier max_hourly_cost image_id ports labels autostop any_of ordered "
    "job_recovery".split()
)
MOUNTS = frozenset("name source store persistent mode config".split())


def read_task(path, settings):
    """The fields of a task with these variables. Refuses what `sky launch` does."""
    text = path.read_text(encoding="utf-8")
    task = yaml.safe_load(text)
    assert task.keys() <= FIELDS
    assert task["resources"].keys() <= RESOURCES
    envs = {name: str(value) for name, value in {**task["envs"], **settings}.items() if value}
    assert settings.keys() <= task["envs"].keys() == envs.keys(), "a variable is unknown or missing"
    for mount in task["file_mounts"].values():
        if not isinstance(mount, str):  # which is a folder of this machine
            assert mount.keys() <= MOUNTS
            assert mount["mode"] in ("MOUNT", "MOUNT_CACHED", "COPY")
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n", "-c", task[name]], check=True)
    return {**task, "envs": envs}


def run_task(task, *, nodes, gpus, env):
    """Runs a task on each node, one after the other; the finished processes."""
    return [
        subprocess.run(
            ["bash", "-c", task["run"]],
            env={
                **env,
                **task["envs"],
                "SKYPILOT_NODE_RANK": str(rank),
                "SKYPILOT_NUM_NODES": str(nodes),
                "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        for rank in range(nodes)
    ]

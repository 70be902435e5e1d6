"""A stand-in for Slurm."""

import stat

SBATCH = """#!/bin/bash
# Runs the tasks of an array one after the other, and prints as sbatch does.
array=
while [[ $1 == -* ]]; do
  [[ $1 == --array=* ]] && array=${1#--array=}
  shift
done
bash -n "$1" || exit 1
[[ $array ]] || array=$(sed -n 's/^#SBATCH --array=\\([-,0-9]*\\).*/\\1/p' "$1")
tasks=()
for range in ${array//,/ }; do tasks+=($(seq "${range%-*}" "${range#*-}")); done
export SLURM_JOB_ID=7 SLURM_NODELIST=node SLURM_JOB_NODELIST=node SLURM_JOB_NUM_NODES=1
export SLURM_GPUS_ON_NODE=1 SLURM_ARRAY_TASK_COUNT=${#tasks[@]}
for task in "${tasks[@]:-0}"; do
  SLURM_ARRAY_TASK_ID=$task bash "$@" >&2 || exit 1
done
echo "Submitted batch job 7"
"""


SRUN = """#!/bin/bash
exec "$@"
"""
SCONTROL = """#!/bin/bash
# Of `show hostnames`, for the one node there is.
echo node
"""


def write_slurm(folder):
    """Writes the programs to a folder that is to come first in PATH."""
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL}.items():
        write_program(folder / name, text)


def write_program(path, text):
    """Writes a script that can be started by its name."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)

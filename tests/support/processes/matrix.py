"""Trains through every layout that the file named by CELLS lists, one after the other in this
process (or these, together): `[[name, is_fsdp, arguments], ...]`, with the name of an earlier one
behind them if it goes on from that one's last checkpoint but one. Writes to the folder named by
RECORD, for each, what its parameters were.

With SECONDS the first grading of each run's benchmarks takes so much longer; only the first
process grades.

FSDP on a CPU: Accelerate would make DDP of it, so its state is told what it would be on a GPU.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from runs import cut_back
from vocagno.training import main as main_module
from vocagno.training.main import set_up_fsdp
from vocagno.training.step import Stepper

kind = PartialState(cpu=True).distributed_type
seen = {}
start, update = main_module.start, Stepper.update


def sharded(config):
    """An accelerator for FSDP2 over the processes of this CPU."""
    accelerator = start_unsharded(config)
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.distributed_type = DistributedType.FSDP
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )
    if accelerator.mixed_precision != "no":  # as Accelerate does
        plugin.set_mixed_precision(accelerator.mixed_precision)
    set_up_fsdp(plugin, config)
    accelerator.state.fsdp_plugin = plugin
    return accelerator


def start_unsharded(config):
    """As `start`, but a teacher may be sharded, since the student will be."""
    teacher = replace(config.teacher, shard=False)
    return start(replace(config, teacher=teacher))


def watched(self):
    parameters = list(self.student.parameters())
    seen["wrapper"] = type(self.student).__name__
    seen["sharded"] = sum(isinstance(parameter, DTensor) for parameter in parameters)
    seen["parameters"] = len(parameters)
    grads = [getattr(parameter.grad, "_local_tensor", parameter.grad) for parameter in parameters]
    seen["gradient_storages"] = len({grad.untyped_storage().data_ptr() for grad in grads})
    if self.live_teacher is not None:
        teacher = self.live_teacher.scorer.model.base_model.parameters()
        seen["teacher_sharded"] = all(isinstance(parameter, DTensor) for parameter in teacher)
    return update(self)


def grade_slowly():
    from vocagno.training.validation import Evaluation

    graded, graded_by = Evaluation._grade, []

    def slow(self, *arguments):
        if self not in graded_by:
            graded_by.append(self)
            time.sleep(float(os.environ["SECONDS"]))
        return graded(self, *arguments)

    Evaluation._grade = slow


if "SECONDS" in os.environ:
    grade_slowly()
Stepper.update = watched
Accelerator.end_training = lambda self: None  # one process group for all layouts

status = 0
for name, is_fsdp, arguments, *earlier in json.loads(Path(os.environ["CELLS"]).read_text()):
    record = Path(os.environ["RECORD"])
    if earlier and int(os.environ["RANK"]) == 0:
        cut_back(record / earlier[0], record / name)
    if "distributed_type" in PartialState._shared_state:
        PartialState._shared_state["distributed_type"] = kind
    AcceleratorState._reset_state()
    main_module.start = sharded if is_fsdp else start
    seen.clear()
    status = main_module.main(arguments)
    if status:
        print(f"cell {name} failed", file=sys.stderr)
        break
    if int(os.environ.get("RANK", "0")) == 0:
        (record / f"{name}.json").write_text(json.dumps(seen))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
sys.exit(status)

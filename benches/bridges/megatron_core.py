"""Megatron-core with `examples/megatron_loss.py`, next to a plain loop.

PYTHONPATH=benches:examples python -m bridges.megatron_core MATERIAL

The package has no `pretrain_gpt.py`; its builder of data sets, model, DDP, schedule and optimizer
are called as that does. Which token a label is says a second file of the same lengths, whose tokens
are their own places: Megatron shuffles it in the same way.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron_loss import distill_loss_func, guided, loss_func
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from bridges.comparison import (
    ADAMW,
    LEARNING_RATE,
    LENGTH,
    ROWS,
    STEPS,
    VOCABULARY,
    Run,
    bake,
    bucket_of_ids,
    distilled_mean,
    plain_loop,
    report,
    weighted_mean,
)
from bridges.no_cuda import one_process
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.integrations.baked_files import BakedLosses, read_manifest, write_manifest

EOS, PADDING = 2, 0


def write(prefix: Path, documents: list[np.ndarray], dtype: type) -> Path:
    """A pair of .bin and .idx, by Megatron's own builder."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for ids in documents:
        builder.add_document(torch.from_numpy(ids.astype(np.int64)), [len(ids)])
    builder.finalize(f"{prefix}.idx")
    return prefix


def samples(prefix: Path, dataset_class: Any) -> list[dict[str, Tensor]]:
    """The samples of all steps, in Megatron's order."""
    tokenizer = SimpleNamespace(
        eod=EOS, pad=PADDING, vocab_size=VOCABULARY, unique_identifiers={"class": "drawn"}
    )
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=0,
            sequence_length=LENGTH,
            blend=([str(prefix)], None),
            split="1",
            path_to_cache=cache,
            tokenizer=tokenizer,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        )
        sizes = [STEPS * ROWS, 0, 0]
        builder = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config)
        dataset = builder.build()[0]
        return [dict(dataset[index]) for index in range(sizes[0])]


def gpt() -> GPTModel:
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    torch.manual_seed(0)
    spec = get_gpt_layer_local_spec(normalization="LayerNorm")
    return GPTModel(config, spec, VOCABULARY, LENGTH)


def forward_step(iterator: Iterator[dict[str, Tensor]], model: Any) -> Any:
    """Does what pretrain_gpt.py does, with the weights of the batch."""
    b = next(iterator)
    output = model(b["tokens"], b["position_ids"], b["attention_mask"], labels=b["labels"])
    return output, partial(loss_func, b["loss_mask"], token_weights=b["token_weights"])


def distilling(table: BucketTable) -> Any:
    """Makes a `forward_step` on logits, with weights and candidates of the batch."""

    def step(iterator: Iterator[dict[str, Tensor]], model: Any) -> Any:
        b = next(iterator)
        logits = model(b["tokens"], b["position_ids"], b["attention_mask"])
        columns = {name: b[name] for name in ("labels", "candidates", "candidate_mass")}
        columns |= {"weights": b["token_weights"], "buckets": table}
        return logits, partial(distill_loss_func, b["loss_mask"], **columns)

    return step


def train(rows: list[dict[str, Tensor]], forward_step: Any) -> Run:
    model = gpt()
    parallel = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    options = OptimizerConfig(
        lr=LEARNING_RATE,
        adam_beta1=ADAMW["betas"][0],
        adam_beta2=ADAMW["betas"][1],
        adam_eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
        clip_grad=0.0,
    )
    optimizer = get_megatron_optimizer(options, [parallel])
    run, batches, losses = get_forward_backward_func(), iter(DataLoader(rows, ROWS)), []
    for _ in range(STEPS):
        parallel.zero_grad_buffer()
        optimizer.zero_grad()
        (reported,) = run(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[parallel],
            num_microbatches=1,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
        )
        total, count = reported["lm loss"].tolist()
        losses.append(total / count)
        optimizer.step()
    return losses, parameters(model)


def join(runs: list[Run]) -> Run:
    """Joins several runs, so that one line compares all of them."""
    weights = {f"{n}.{name}": part for n, run in enumerate(runs) for name, part in run[1].items()}
    return [loss for run in runs for loss in run[0]], weights


def parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters()}


def main() -> None:
    material = Path(sys.argv[1])
    tokens = np.load(material / "tokens.npy")
    documents = np.split(tokens, np.flatnonzero(tokens == EOS) + 1)[:-1]
    starts = np.cumsum([0, *map(len, documents)])
    places = [np.arange(*ends) for ends in pairwise(starts)]
    no_dropout = mock.Mock(fork=nullcontext)  # its random states are those of CUDA
    draws = mock.patch.object(tensor_parallel, "get_cuda_rng_tracker", return_value=no_dropout)
    with tempfile.TemporaryDirectory() as temporary, one_process(), draws:
        parallel_state.initialize_model_parallel()
        folder = Path(temporary)
        for name in ("student", "teacher", "scores"):
            (folder / name).symlink_to((material / name).absolute())
        prefix = write(folder / "corpus", documents, np.uint16)
        bake(folder, "corpus.bin")
        other = folder / "other"
        for suffix in (".bin", ".idx"):
            shutil.copy(f"{prefix}{suffix}", f"{other}{suffix}")
        shutil.copytree(f"{prefix}.baked", f"{other}.baked")
        for stream in ("weight", "candidate", "candidate_mass"):
            kept = np.load(folder / "other.baked" / f"{stream}.npy", mmap_mode="r+")
            kept[:] = np.random.default_rng(0).permutation(kept)
            kept.flush()
        changed = read_manifest(folder / "other.baked")
        write_manifest(folder / "other.baked", {**changed, "samples": {}})
        baked = BakedLosses(f"{prefix}.baked")
        table = baked.buckets()
        batches, permuted_batches = (
            samples(path, guided(GPTDataset, baked.bucket_key)) for path in (prefix, other)
        )
        steps = forward_step, distilling(table)
        bridge, permuted = (
            join([train(of, step) for step in steps]) for of in (batches, permuted_batches)
        )
        streams = {
            "weights": torch.from_numpy(baked.weights / np.float32(255)),
            "buckets": torch.from_numpy(np.array(baked.candidates)),
            "mass": torch.from_numpy(baked.candidate_mass.astype(np.float32)),
        }
        rows = samples(prefix, GPTDataset)
        places_of = samples(write(folder / "places", places, np.int32), GPTDataset)
        for row, place in zip(rows, places_of, strict=True):
            row |= {name: stream[place["labels"]] for name, stream in streams.items()}
        bucket_of_V = bucket_of_ids(table)

        def loss(model: GPTModel, is_distilled: bool, step: int) -> Tensor:
            batch = default_collate(rows[step * ROWS : (step + 1) * ROWS])
            logits = model(batch["tokens"], batch["position_ids"], batch["attention_mask"])
            arguments = logits, batch["labels"], batch["weights"]
            if is_distilled:
                return distilled_mean(*arguments, batch["buckets"], batch["mass"], bucket_of_V)
            return weighted_mean(*arguments)

        runs = []
        for is_distilled in (False, True):
            model = gpt()
            losses = (partial(loss, model, is_distilled, step) for step in range(STEPS))
            runs.append((plain_loop(model, losses, clip=False)[0], parameters(model)))
        plain = join(runs)
    report(
        "megatron-core",
        bridge,
        plain,
        permuted[0],
        compared="`guided(GPTDataset)` from the builder, `GPTModel`, DDP, `forward_backward_func`, "
        "its optimizer, `loss_func` and `distill_loss_func` of the example; the reported `lm loss`",
        differs="`cuda` in the source means the CPU, gradients are not clipped (Megatron refuses "
        "to on a CPU), and `pretrain_gpt.py` is not in the package",
    )


if __name__ == "__main__":
    main()

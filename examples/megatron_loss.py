"""Baked losses, weights and candidates in the training loops of Megatron-LM and torchtitan.

`vocagno bake corpus.bin --scores scores --tokenizer STUDENT --weights --out corpus.baked` writes
them next to Megatron's `corpus.bin`, candidates with `--teacher_tokenizer TEACHER`. Then, in
`pretrain_gpt.py`: give `guided(GPTDataset)` to the builder (with candidates also their
`bucket_key`), let `get_batch` pass them on, and return `partial(loss_func,
token_weights=token_weights)`, or `distill_loss_func`. Or multiply `loss_mask` by the weights in
`guided`: Megatron then divides by their sum.

The shapes are those of Megatron-LM (pretrain_gpt.py at 000ab9d, gpt_dataset.py at 002398e) and
torchtitan 0.3. `make bridges` runs them in Megatron-core and in torchtitan (docs/bridges.md).
"""

from copy import copy
from functools import cache

import torch

from vocagno.guidance import GuidanceConfig, selective_cross_entropy, token_weights
from vocagno.guidance.batch import GuidanceTensors
from vocagno.integrations.baked_files import BakedLosses

STREAMS = "weight", "candidates", "candidate_mass"
# The limit is that of `vocagno bake --weights`.
DISTILL = GuidanceConfig(method="distill", distill_where="all", window_max_loss=2.0)


@cache
def baked(prefix, bucket_key=None):
    """The streams of a token file, opened once in each process."""
    losses = BakedLosses(f"{prefix}.baked")
    losses.check(prefix)
    if losses.has_candidates and losses.bucket_key != bucket_key:
        raise ValueError(f"{losses.folder}: not over the buckets whose bucket_key guided() has")
    return losses


class Parallel:
    """Stands for Megatron's IndexedDataset: the same places, of a stream parallel to its tokens."""

    def __init__(self, indexed, stream):
        self.indexed, self.stream = indexed, stream

    def get(self, idx, offset=0, length=None):
        pointer, size, _ = self.indexed.index[idx]
        first = int(pointer) // self.indexed.index.dtype_size + offset
        return self.stream[first : first + (size - offset if length is None else length)]


def guided(dataset_class, bucket_key=None):
    """A GPTDataset whose samples have the weight of each label, too, and candidates if baked.

    bucket_key: for candidates, `BakedLosses.bucket_key` of the table in the loss, which all token
    files of a blend must have.
    """

    class Guided(dataset_class):
        def __getitem__(self, idx):
            item = super().__getitem__(idx)
            streams = baked(self.dataset.path_prefix, bucket_key)
            item["token_weights"] = self.of_labels(idx, streams.weights) / 255
            if streams.has_candidates:
                item["candidates"] = self.of_labels(idx, streams.candidates)
                item["candidate_mass"] = self.of_labels(idx, streams.candidate_mass).float()
            return item

        def of_labels(self, idx, stream):
            twin, bits = copy(self), stream.view(f"u{stream.itemsize}")  # Megatron makes integers
            twin.dataset = Parallel(self.dataset, bits)
            values, _ = twin._query_document_sample_shuffle_indices(idx or 0)
            of_labels = values[1:].astype(bits.dtype).view(stream.dtype)  # labels are tokens[1:]
            return torch.from_numpy(of_labels)

    return Guided


def loss_func(loss_mask, output_tensor, token_weights, model=None):
    """Megatron's, weighted: it divides by all predicted tokens (Eq. 3)."""
    losses, mask = output_tensor.view(-1).float(), loss_mask.view(-1).float()
    weights = mask * token_weights.view(-1)
    loss = (losses.masked_fill(weights == 0, 0.0) * weights).sum()
    num_tokens = mask.sum().detach().to(torch.int)
    return loss, num_tokens, {"lm loss": torch.cat([loss.detach().view(1), num_tokens.view(1)])}


def distill_loss_func(loss_mask, output_tensor, labels, weights, buckets, **candidates):
    """As `loss_func`, of the logits of a model that gets no labels; without tensor parallelism.

    Args: buckets: `BakedLosses.buckets()`. candidates: `candidates` and `candidate_mass`.
    """
    labels = labels.masked_fill(loss_mask == 0, -100)
    weights = weights * loss_mask
    loss, _ = GuidedCrossEntropy(weights, buckets, **candidates)(output_tensor, labels)
    num_tokens = loss_mask.sum().detach().to(torch.int)
    return loss, num_tokens, {"lm loss": torch.cat([loss.detach().view(1), num_tokens.view(1)])}


def paper_weights(output_tensor, loss_mask, teacher_loss, top_fraction=0.4):
    """The paper's rule, which needs the student: from `BakedLosses.losses` of the labels."""
    labels = torch.where(loss_mask > 0, 0, -100)
    rule = GuidanceConfig(top_fraction=top_fraction)
    return token_weights(output_tensor.float(), teacher_loss.float(), labels, rule)


class GuidedCrossEntropy:
    """torchtitan's CrossEntropyLoss, by the baked `weight` of a micro-batch, and `candidates`."""

    def __init__(self, weight, buckets=None, **candidates):
        weight = weight.reshape(1, -1)
        columns = {name: x.reshape(1, -1, x.shape[-1]) for name, x in candidates.items()}
        if (buckets is None) != (not columns):
            raise ValueError("candidates and the table of their buckets are needed together")
        # No loss of the teacher decides: the weights are made, and candidates are used everywhere.
        self.teacher = GuidanceTensors(
            teacher_loss=torch.zeros_like(weight), weight=weight, buckets=buckets, **columns
        )
        self.guidance = DISTILL if candidates else GuidanceConfig()

    def __call__(self, pred, labels, global_valid_tokens=None, **_):
        logits, labels = pred.reshape(1, -1, pred.shape[-1]), labels.reshape(1, -1)
        loss, _ = selective_cross_entropy(logits, None, labels, self.teacher, self.guidance)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


def guided_trainer(trainer_class, buckets=None):
    """torchtitan's Trainer, for batches with baked streams next to `input`.

    buckets: `BakedLosses.buckets()`, if candidates are among them.

    torchtitan gives its loss nothing else of a batch. Not for pipeline and context parallelism, the
    ChunkedLossWrapper and CUDA graphs (`training.disable_cuda_graphs`).
    """

    class Guided(trainer_class):
        def post_dataloading_process(self, input_dict, labels):
            streams = {name: input_dict.pop(name) for name in STREAMS if name in input_dict}
            self.loss_fn = GuidedCrossEntropy(buckets=buckets, **streams)
            return super().post_dataloading_process(input_dict, labels)

    return Guided

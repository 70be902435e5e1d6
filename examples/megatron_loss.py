"""Baked losses and weights in Megatron-LM's training loop, and in torchtitan's loss.

`vocagno bake corpus.bin --scores scores --tokenizer STUDENT --weights --out corpus.baked` writes
them next to Megatron's `corpus.bin`. Then, in `pretrain_gpt.py`: give `guided(GPTDataset)` to the
builder, let `get_batch` pass them on, and return `partial(loss_func, token_weights=token_weights)`.
Or multiply `loss_mask` by them in `guided`: Megatron then divides by the sum of the weights.

The shapes are those of Megatron-LM (pretrain_gpt.py at 000ab9d, gpt_dataset.py at 002398e) and
torchtitan 0.3. `make bridges` runs them in Megatron-core and in torchtitan (docs/bridges.md).
"""

from copy import copy
from functools import cache

import torch
from torch.nn.functional import cross_entropy

from vocagno.guidance import GuidanceConfig, token_weights
from vocagno.integrations.baked_files import BakedLosses


@cache
def baked(prefix):
    """The streams of a token file, opened once in each process."""
    found = BakedLosses(f"{prefix}.baked")
    found.check(prefix)
    return found


class Parallel:
    """Stands for Megatron's IndexedDataset: the same places, of a stream parallel to its tokens."""

    def __init__(self, indexed, stream):
        self.indexed, self.stream = indexed, stream

    def get(self, idx, offset=0, length=None):
        pointer, size, _ = self.indexed.index[idx]
        first = int(pointer) // self.indexed.index.dtype_size + offset
        return self.stream[first : first + (size - offset if length is None else length)]


def guided(dataset_class):
    """A GPTDataset whose samples have the weight of each label, too."""

    class Guided(dataset_class):
        def __getitem__(self, idx):
            item, twin = super().__getitem__(idx), copy(self)
            twin.dataset = Parallel(self.dataset, baked(self.dataset.path_prefix).weights)
            weights, _ = twin._query_document_sample_shuffle_indices(idx or 0)
            item["token_weights"] = torch.from_numpy(weights[1:]) / 255  # labels are tokens[1:]
            return item

    return Guided


def loss_func(loss_mask, output_tensor, token_weights, model=None):
    """Megatron's, weighted: it divides by all predicted tokens (Eq. 3)."""
    losses, mask = output_tensor.view(-1).float(), loss_mask.view(-1).float()
    weights = mask * token_weights.view(-1)
    loss = (losses.masked_fill(weights == 0, 0.0) * weights).sum()
    num_tokens = mask.sum().detach().to(torch.int)
    return loss, num_tokens, {"lm loss": torch.cat([loss.detach().view(1), num_tokens.view(1)])}


def paper_weights(output_tensor, loss_mask, teacher_loss, top_fraction=0.4):
    """The paper's rule, which needs the student: from `BakedLosses.losses` of the labels."""
    labels = torch.where(loss_mask > 0, 0, -100)
    rule = GuidanceConfig(top_fraction=top_fraction)
    return token_weights(output_tensor.float(), teacher_loss.float(), labels, rule)


class GuidedCrossEntropy:
    """torchtitan's CrossEntropyLoss, weighted by the `token_weights` of a micro-batch."""

    def __init__(self, token_weights):
        self.token_weights = token_weights

    def __call__(self, pred, labels, global_valid_tokens=None, **_):
        pred, labels = pred.flatten(0, -2).float(), labels.flatten()
        nll = cross_entropy(pred, labels, reduction="none", ignore_index=-100)
        loss = (nll * self.token_weights.flatten()).sum()
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


def guided_trainer(trainer_class):
    """torchtitan's Trainer, for batches with `token_weights` next to `input`.

    torchtitan gives its loss nothing else of a batch. Not for pipeline and context parallelism, the
    ChunkedLossWrapper and CUDA graphs (`training.disable_cuda_graphs`).
    """

    class Guided(trainer_class):
        def post_dataloading_process(self, input_dict, labels):
            self.loss_fn = GuidedCrossEntropy(input_dict.pop("token_weights"))
            return super().post_dataloading_process(input_dict, labels)

    return Guided

"""examples/megatron_loss.py with stand-ins: Megatron's data set and loss, torchtitan's loss.

The stand-ins have the shapes of their sources; `make bridges` runs the trainers.
"""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from examples import load_example
from families import TEXTS
from token_streams import documents_of, write_losses, write_megatron
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.integrations.baked_files import BakedLosses
from vocagno.integrations.baking.whole_file import bake_file
from vocagno.integrations.token_files import TokenFileError, open_token_file
from vocagno.tokens.buckets import buckets

SEQ_LEN = 16


@pytest.fixture
def example():
    return load_example("megatron_loss")


@pytest.fixture
def made(tmp_path, tokenizers):
    """A token file, its documents, and its streams under the name that the example looks for."""
    texts = [f"{number}: {text}" for number, text in enumerate(TEXTS)]
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], texts, candidates=3)
    documents = documents_of(tokenizers["llama"], texts)
    prefix = write_megatron(tmp_path / "corpus", documents)
    student, teacher = (TokenSpans(tokenizers[name]) for name in ("llama", "byte-level"))
    arguments = open_token_file(prefix), student, store, tmp_path / "corpus.baked"
    targets = BucketTargets(buckets(student, teacher), 3)
    bake_file(*arguments, GuidanceConfig(unit="token"), GuidanceConfig(), targets)
    return prefix, documents


class IndexedDataset:
    """Megatron's, of one sequence for each document."""

    def __init__(self, prefix, documents):
        self.path_prefix, self.documents = str(prefix), documents
        starts = np.cumsum([0, *map(len, documents)]) * 2
        entries = {n: (np.int64(starts[n]), len(ids), None) for n, ids in enumerate(documents)}
        self.index = type("Index", (dict,), {"dtype_size": 2})(entries)

    def get(self, idx, offset=0, length=None):
        ids = np.asarray(self.documents[idx])
        return ids[offset:] if length is None else ids[offset : offset + length]


class GPTDataset:
    """Megatron's: samples of shuffled documents, one after the other."""

    def __init__(self, dataset):
        self.dataset = dataset
        order = np.random.default_rng(0).permutation(len(dataset.documents)).tolist()
        self.places = [(d, at) for d in order for at in range(len(dataset.documents[d]))]

    def _query_document_sample_shuffle_indices(self, idx):
        places = self.places[idx * SEQ_LEN : (idx + 1) * SEQ_LEN + 1]
        runs, at = [], 0
        while at < len(places):
            document, offset = places[at]
            stop = at
            while stop < len(places) and places[stop][0] == document:
                stop += 1
            is_last = stop == len(places)
            length = stop - at if is_last else None
            runs.append(self.dataset.get(document, offset=offset, length=length))
            at = stop
        return np.concatenate(runs, dtype=np.int64), None

    def __getitem__(self, idx):
        text, _ = self._query_document_sample_shuffle_indices(idx or 0)
        mask = torch.ones(len(text) - 1)
        return {"tokens": text[:-1], "labels": text[1:], "loss_mask": mask}


def test_weights_come_with_the_labels(example, made):
    """Megatron shuffles documents and cuts samples across them: sees a weight of the input instead
    of the label, and streams of another file."""
    prefix, documents = made
    indexed = IndexedDataset(prefix, documents)
    baked = BakedLosses(f"{prefix}.baked")
    with pytest.raises(ValueError, match="not over the buckets whose bucket_key"):
        example.guided(GPTDataset, "another")(indexed)[0]
    dataset = example.guided(GPTDataset, baked.bucket_key)(indexed)
    starts = np.cumsum([0, *map(len, documents)])
    flat = np.array([starts[d] + at for d, at in dataset.places])
    kept = []
    for idx in range(len(flat) // SEQ_LEN):
        item = dataset[idx]
        places = flat[idx * SEQ_LEN + 1 : (idx + 1) * SEQ_LEN + 1]
        np.testing.assert_array_equal(item["labels"], np.concatenate(documents)[places])
        expected = torch.tensor(baked.weights[places] / 255)
        torch.testing.assert_close(item["token_weights"].double(), expected, rtol=1e-6, atol=0)
        np.testing.assert_array_equal(item["candidates"], baked.candidates[places])
        np.testing.assert_array_equal(item["candidate_mass"], baked.candidate_mass[places])
        kept.append(item["token_weights"].mean().item())
    assert 0 < np.mean(kept) < 1
    assert dataset[None]["token_weights"].equal(dataset[0]["token_weights"])
    assert dataset.dataset is indexed
    assert (baked.candidates >= 0).any(1).mean() > 0.3
    prefix.with_suffix(".bin").write_bytes(bytes(10))
    example.baked.cache_clear()
    with pytest.raises(TokenFileError, match="is not the token file"):
        dataset[0]


def megatron_loss(loss_mask, output_tensor):
    """What Megatron's own function computes."""
    losses, mask = output_tensor.view(-1).float(), loss_mask.view(-1).float()
    return (losses * mask).sum(), mask.sum().to(torch.int)


def test_weights_multiply_the_loss_and_not_its_count(example):
    draw = torch.Generator().manual_seed(0)
    output = torch.rand(2, 8, generator=draw, requires_grad=True)
    mask = (torch.rand(2, 8, generator=draw) > 0.2).float()
    weights = (torch.rand(2, 8, generator=draw) > 0.5).float()
    loss, num_tokens, report = example.loss_func(mask, output, weights)
    expected, _ = megatron_loss(mask * weights, output)
    assert loss == expected
    assert (num_tokens.dtype, num_tokens) == (torch.int, megatron_loss(mask, output)[1])
    assert report["lm loss"].tolist() == [loss.item(), num_tokens.item()]
    loss.backward()
    assert output.grad.equal(mask * weights)
    plain = example.loss_func(mask, output, torch.ones(2, 8))
    assert plain[:2] == megatron_loss(mask, output)
    infinite = torch.where(weights > 0, output.detach(), torch.inf)
    assert example.loss_func(mask, infinite, weights)[0] == expected


def test_the_teacher_s_share_is_added_to_the_weighted_loss(example, made):
    """Without the teacher's share it is the weighted loss; masked labels are not in it."""
    baked = BakedLosses(f"{made[0]}.baked")
    size = baked.buckets().vocabulary_size
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 20, size, generator=draw)
    labels = torch.randint(size, (1, 20), generator=draw)
    mask = (torch.rand(1, 20, generator=draw) > 0.3).float()
    batch = {
        "weights": torch.from_numpy(baked.weights[None, :20] / np.float32(255)),
        "candidates": torch.from_numpy(np.array(baked.candidates[None, :20])),
        "candidate_mass": torch.from_numpy(np.float32(baked.candidate_mass[None, :20])),
    }
    loss, count, _ = example.distill_loss_func(
        mask, logits, labels, buckets=baked.buckets(), **batch
    )
    batch["candidates"] = torch.full_like(batch["candidates"], -1)
    plain, _, _ = example.distill_loss_func(mask, logits, labels, buckets=baked.buckets(), **batch)
    nll = torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="none")
    torch.testing.assert_close(plain, (nll * mask[0] * batch["weights"][0]).sum())
    assert abs(float(loss - plain)) > 0.1
    assert count == mask.sum()
    half, _, _ = example.distill_loss_func(
        mask / 2, logits, labels, buckets=baked.buckets(), **batch
    )
    torch.testing.assert_close(half, plain / 2)  # as that of losses
    for table, tensors in ((None, batch), (baked.buckets(), {"weights": batch["weights"]})):
        with pytest.raises(ValueError, match="are needed together"):
            example.distill_loss_func(mask, logits, labels, buckets=table, **tensors)


def test_the_paper_s_rule_from_losses(example):
    draw = torch.Generator().manual_seed(0)
    student, teacher = torch.rand(2, 2, 10, generator=draw)
    teacher[0, 3] = torch.nan
    mask = torch.ones(2, 10)
    mask[1, 5:] = 0
    weights = example.paper_weights(student, mask, teacher.half())
    assert weights.sum(1).tolist() == [4 + 1, 2]  # 40 % of 9 and one without a loss; of 5
    assert weights[0, 3] == 1
    assert (weights[mask == 0] == 0).all()
    kept = (student - teacher)[1, :5][weights[1, :5] == 1]
    assert kept.min() >= (student - teacher)[1, :5][weights[1, :5] == 0].max()


def test_torchtitan_s_loss(example):
    draw = torch.Generator().manual_seed(0)
    pred = torch.randn(2, 5, 7, generator=draw, requires_grad=True)
    labels = torch.randint(7, (2, 5), generator=draw)
    labels[0, 0] = -100
    weights = (torch.rand(2, 5, generator=draw) > 0.5).float()
    count = torch.tensor(9)
    loss, metrics = example.GuidedCrossEntropy(weights)(pred, labels, count, x=1)
    kept = torch.where(weights > 0, labels, -100)
    plain = torch.nn.functional.cross_entropy(pred.view(-1, 7), kept.view(-1), reduction="sum")
    torch.testing.assert_close(loss, plain / 9)
    assert metrics == {}
    flat = SimpleNamespace(pred=pred.flatten(0, 1), labels=labels.flatten())  # [T, V] and [T]
    again, _ = example.GuidedCrossEntropy(weights.view(-1))(flat.pred, flat.labels)
    torch.testing.assert_close(again, plain)


def test_torchtitan_s_trainer_takes_the_weights_from_a_batch(example):
    """Its model would refuse them, and its loss gets nothing but the positions."""

    class Trainer:
        def post_dataloading_process(self, input_dict, labels):
            assert input_dict.keys() == {"input", "positions"}
            return input_dict["input"], labels, {}

    trainer = example.guided_trainer(Trainer)()
    for weights in (torch.ones(1, 3), torch.zeros(1, 3)):
        batch = {"input": torch.zeros(1, 3), "positions": None, "weight": weights}
        trainer.post_dataloading_process(batch, torch.zeros(1, 3))
        assert torch.equal(trainer.loss_fn.teacher.weight, weights)

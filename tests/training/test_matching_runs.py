"""Whole runs of `alm` and `distill`: what is logged, resumed runs, layouts, live and stored."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vocagno
from chaos import repeats
from corpora import write_corpus
from families import TEXTS
from method_runs import distance
from runs import cut_back, metrics, train_here, write_config
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.rows import cut_rows, document_rows, join_documents
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import Collator
from vocagno.guidance.loss import LossSums
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.models.losses import IGNORED
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.training.step import GuidedStudent

DOCUMENTS = TEXTS[:6]
METHODS = {
    "alm": {"method": "alm"},
    "surer": {"method": "distill"},
    "everywhere": {"method": "distill", "distill_where": "all"},
}
NAIVE = {"method": "cpt"}
VARIANTS = {
    "live": {"teacher.mode": "live"},
    "accumulated": {"train.micro_batch": 1, "data.num_workers": 1},
    "no share": {"guidance.distillation_weight": 0.0},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory, tokenizer_files, teacher_model):
    """The folder of a run, made when it is first asked for. Each corpus is one row, so no document
    is cut, and a live teacher reads what a stored one has read. Its candidates are not sampled,
    because a live teacher draws others each time."""
    folder = tmp_path_factory.mktemp("matching")
    parts = DOCUMENTS[:4], DOCUMENTS[4:]
    corpora = [str(write_corpus(folder / f"{n}.jsonl", part)) for n, part in enumerate(parts)]

    def run(method, variant="stored"):
        output = folder / f"{method} {variant}"
        if not output.exists():
            is_distilled = method not in ("alm", "cpt")
            path = write_config(
                folder,
                corpora[0],
                tokenizer_files,
                teacher_model,
                teacher={"candidates": 8, "sampled": False} if is_distilled else {},
                data={
                    "train": dict.fromkeys(corpora, 1),
                    "seq_len": 330,
                    "isolate": True,
                    "validation": corpora[0],
                },
                guidance={"top_fraction": None, **(NAIVE if method == "cpt" else METHODS[method])},
                train={"log_every": 1, "checkpoint_every": 3, "global_batch": 4, "micro_batch": 4},
            )
            options = {**VARIANTS.get(variant, {}), "output": output}
            words = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
            assert train_here(path, *words) == 0
        return output

    return run


def same_training(folder, other, rel):
    for entry, expected in zip(*(metrics(run)[0] for run in (folder, other)), strict=True):
        for name in ("loss", "kept_loss", "grad_norm", "mean_teacher_loss", "mean_cross_entropy"):
            assert entry.get(name, 0) == pytest.approx(expected.get(name, 0), rel=rel), name
        for name in ("tokens", "kept_fraction", "coverage", "scored", "paired", "unmapped"):
            assert entry.get(name) == expected.get(name), name
    return distance(folder, other)


@pytest.mark.slow
@pytest.mark.parametrize("method", repeats([*METHODS], ["alm", "everywhere"]))
def test_every_way_to_run_trains_alike(ran, method):
    """Its losses move, and are those of another layout, of a live teacher, and of a resumed run;
    without a share of the teacher they are those of naive training."""
    whole, naive = ran(method), ran("cpt")
    entries = metrics(whole)[0]
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    for entry in entries:
        assert (entry["coverage"], entry["kept_fraction"]) == (1, 1)
        assert entry["kept_loss"] == pytest.approx(entry["loss"])
        assert ("mean_cross_entropy" in entry) == (method != "alm")
        if method != "alm":
            assert entry["mean_cross_entropy"] > 0.01
            assert 0.1 < entry["paired"] < (0.9 if method == "surer" else 0.97)
    assert same_training(ran(method, "accumulated"), whole, 1e-4) < 1e-5
    # Stored losses are float16. They decide nothing where distributions are compared.
    loss, weight = (1e-3, 3e-3) if method == "alm" else (1e-5, 3e-4)
    assert same_training(ran(method, "live"), whole, loss) < weight
    for line, expected in zip(metrics(ran(method, "no share"))[0], metrics(naive)[0], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert abs(entries[-1]["loss"] - metrics(naive)[0][-1]["loss"]) > 1e-4

    copy = cut_back(whole, whole.with_name(f"{whole.name} again"))
    assert train_here(whole / "config.yaml", "--output", copy) == 0
    assert same_training(copy, whole, 0) == 0


@pytest.fixture(scope="module")
def itself(tmp_path_factory, tokenizers):
    """A model that is its own teacher: its folder, its rows, whole and packed, and its scores."""
    folder = tmp_path_factory.mktemp("itself")
    model = tiny_llama(tokenizers["byte-level"].get_vocab_size(), seed=3)
    model.save_pretrained(folder)
    tokenizers["byte-level"].save(str(folder / "tokenizer.json"))
    spans = TokenSpans(folder)
    config = TeacherConfig(model=str(folder), candidates=16, dtype="float32")
    teacher = ConfiguredTeacher(config, folder, torch.device("cpu")).load()
    prompts = [0, 5, 0, 9, 0, 0]
    encoded, eos = spans.encode(DOCUMENTS), spans.token_id("<|endoftext|>")
    stream = join_documents(encoded, 0, spans.prefix_ids, eos, prompts)
    rows = document_rows(stream), cut_rows(stream, 330)
    assert [len(layout) for layout in rows] == [6, 1]
    return model.train(), rows, ScoresInOrder(teacher.score(DOCUMENTS)), spans


def passed(itself, rows, guidance, *, only=None):
    """The output of a pass over rows, and the gradient of all weights.

    Args: only: which labels count, (B, T).
    """
    model, _, scores, spans = itself
    targets = None
    if guidance.needs_candidates:
        targets = BucketTargets(vocagno.buckets(spans, spans), 16)
    data = DataConfig(train="", seq_len=330, isolate=True)
    batch = Collator(scores, guidance, data, targets=targets)(rows)
    inputs = batch.to("cpu").inputs()
    if only is not None:
        inputs["labels"] = inputs["labels"].where(only, IGNORED)
    output = GuidedStudent(model, guidance, targets)(**inputs)
    model.zero_grad()
    output.loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return batch, output, gradient


@pytest.mark.parametrize("method", METHODS)
def test_packed_rows_are_rows_alone(itself, method):
    """And tokens of prompts train nothing."""
    alone, packed = itself[1]
    guidance = GuidanceConfig(**METHODS[method])
    first, second = passed(itself, alone, guidance), passed(itself, packed, guidance)
    assert first[0].counts == second[0].counts
    torch.testing.assert_close(first[1].loss, second[1].loss)
    torch.testing.assert_close(first[1].sums, second[1].sums, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first[2], second[2], rtol=1e-4, atol=1e-5)
    prompts = sum(int(row.num_prompt.sum()) for row in alone)
    tokens = sum(len(row.ids) for row in alone)
    firsts = sum(row.num_prompt[0] == 0 for row in alone)
    assert first[0].counts.predicted == tokens - prompts - firsts < tokens - 6
    if guidance.needs_candidates:
        is_none = first[0].labels == IGNORED
        assert (first[0].candidates[is_none] == -1).all()


def test_a_student_that_is_its_teacher_learns_nothing_from_it(itself):
    alone = itself[1][0]
    everywhere = GuidanceConfig(**METHODS["everywhere"], distillation_weight=1.0)
    batch, output, gradient = passed(itself, alone, everywhere)
    is_compared = (batch.candidates >= 0).any(-1)
    sums = LossSums.of(output.sums)
    cross_entropy, pairs = sums.distance, sums.pairs
    assert pairs == is_compared.sum() > 0.8 * batch.counts.predicted
    mass = batch.candidate_mass[is_compared].double()
    rest = (1 - mass.sum(-1)).clamp_min(0)
    entropy = torch.special.entr(mass).sum() + torch.special.entr(rest).sum()
    assert 0 <= (cross_entropy - entropy) / pairs < 1e-4  # probabilities have 8 bits
    naive = GuidanceConfig(**NAIVE)
    _, _, of_others = passed(itself, alone, naive, only=~is_compared)
    _, _, of_all = passed(itself, alone, naive)
    assert (gradient - of_others).norm() < 0.01 * (of_all - of_others).norm()
    alm = replace(GuidanceConfig(**METHODS["alm"]), distillation_weight=1.0)
    batch, _, gradient = passed(itself, alone, alm)
    is_told = (batch.groups >= 0) & batch.teacher_loss.isfinite()
    _, _, of_others = passed(itself, alone, naive, only=~is_told)
    assert (gradient - of_others).norm() < 0.01 * (of_all - of_others).norm()  # float16
    assert np.isfinite(float(gradient.norm()))

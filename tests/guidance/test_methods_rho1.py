"""The paper's other methods in the same loop: Rho-1, and which options go together."""

import json
import math
import shutil

import pytest

torch = pytest.importorskip("torch")

from live_documents import SEQ_LEN
from method_runs import CPU
from runs import metrics, same_weights, train_here
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.guidance.collator import Collator
from vocagno.guidance.pieces import SameRows
from vocagno.teacher.live import RowTeacher
from vocagno.teacher.transformers_engine import load_scorer


@pytest.mark.slow
def test_with_one_vocabulary_vocagno_is_rho1(tmp_path, config):
    for method in ("vocagno", "rho1", "cpt"):
        assert train_here(config(method, guidance={"method": method})) == 0
    assert same_weights(tmp_path / "vocagno", tmp_path / "rho1")
    assert not same_weights(tmp_path / "vocagno", tmp_path / "cpt")
    logs = [metrics(tmp_path / method)[0] for method in ("vocagno", "rho1")]
    for entry, other in zip(*logs, strict=True):
        assert entry["mean_excess_loss"] == other["mean_excess_loss"]
        assert entry["coverage"] == other["coverage"] == 1.0


@pytest.mark.parametrize(
    ("method", "mode"), [("rho1", "stored"), ("rho1", "live"), ("kld", "live")]
)
def test_another_vocabulary_is_refused_by_a_token(config, teacher_model, capsys, method, mode):
    path = config("run", teacher_model, guidance={"method": method}, teacher={"mode": mode})
    assert train_here(path) == 2
    message = capsys.readouterr().err
    assert f"guidance.method: {method} needs a teacher with the student's vocabulary" in message
    assert "'<unk>', id 0 of" in message
    assert "is no token of" in message


@pytest.mark.slow
def test_scores_of_another_tokenizer_are_refused_without_naming_a_teacher(
    tmp_path, config, teacher_model, capsys
):
    assert train_here(config("a", teacher_model, train={"steps": 1})) == 0
    (scores,) = (tmp_path / "cache" / "scores").iterdir()
    path = config("b", guidance={"method": "rho1"}, teacher={"model": None, "scores": str(scores)})
    assert train_here(path) == 2
    assert "the vocabularies are not the same; use guidance.method: vocagno" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("isolate", [False, True])
def test_a_teacher_reads_the_rows_as_the_student_does(rows, same_vocabulary_model, isolate):
    """Losses and entropies agree with float64 on all logits, with the same mask, in several passes:
    sees a teacher that reads across isolated documents."""
    from transformers import AutoModelForCausalLM

    store, _ = rows
    guidance = GuidanceConfig(method="rho1", criterion="excess_and_entropy", scope="micro_batch")
    config = TeacherConfig(model=str(same_vocabulary_model), mode="live")
    data = DataConfig(train="", seq_len=SEQ_LEN, isolate=isolate)
    scorer = load_scorer(config, TokenSpans(same_vocabulary_model), CPU)
    teacher = RowTeacher(scorer, guidance, CPU, data, 1)
    teacher._rows = 2  # several passes
    batch = Collator(SameRows(), guidance, data)([store[index] for index in range(5)])
    tensors = batch.to(CPU).inputs()
    stats = teacher.guide(None, tensors, teacher.plan(None))
    model = AutoModelForCausalLM.from_pretrained(same_vocabulary_model)
    extra = {name: tensors[name] for name in ("attention_mask", "position_ids") if name in tensors}
    with torch.no_grad():
        log_p = model(tensors["input_ids"], **extra).logits.double().log_softmax(-1)
    labels = tensors["labels"]
    nll = -log_p.gather(2, labels.clamp_min(0)[..., None]).squeeze(2)
    valid = labels >= 0
    assert torch.equal(stats["teacher_loss"].isfinite(), valid)
    torch.testing.assert_close(stats["teacher_loss"][valid].double(), nll[valid], atol=1e-4, rtol=0)
    entropy = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(stats["entropy"].double(), entropy, atol=1e-4, rtol=0)
    counts = batch.counts
    assert counts.predicted == int(valid.sum())
    assert counts.kept == math.ceil(0.4 * int(valid.sum()))


def test_a_teacher_that_cannot_keep_documents_apart_is_refused(
    tmp_path, config, tokenizers, capsys
):
    from transformers import MambaConfig, MambaForCausalLM

    folder = tmp_path / "mamba"
    size = tokenizers["llama"].get_vocab_size()
    settings = MambaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(settings).save_pretrained(folder)
    tokenizers["llama"].save(str(folder / "tokenizer.json"))
    path = config(
        "run", folder, guidance={"method": "kld"}, teacher={"mode": "live"}, data={"isolate": True}
    )
    assert train_here(path) == 2
    assert "MambaForCausalLM does not keep documents of a row apart" in capsys.readouterr().err


LIVE = {"mode": "live"}
PAGES = {"sample_every": 2}


@pytest.mark.parametrize(
    ("guidance", "sections", "message"),
    [
        ({"method": "kld"}, {}, "method: needs more of the teacher than its stored losses"),
        ({"method": "uld"}, {}, "method: needs more of the teacher than its stored losses"),
        (
            {"method": "rho1", "criterion": "excess_and_entropy"},
            {},
            "criterion: needs more of the teacher than its stored losses",
        ),
        ({"method": "kld"}, {"train": PAGES, "teacher": LIVE}, "method: kld it chooses nothing"),
        (
            {"method": "chunk", "selection": "random"},
            {"train": PAGES},
            "method: chunk at random it chooses nothing",
        ),
    ],
)
def test_methods_that_lack_what_they_need_are_refused(config, capsys, guidance, sections, message):
    assert train_here(config("run", guidance=guidance, **sections)) == 2
    assert f"guidance.{message}" in capsys.readouterr().err


def test_a_teacher_too_short_for_the_rows_is_refused_before_it_is_loaded(
    tmp_path, config, same_vocabulary_model, capsys
):
    short = shutil.copytree(same_vocabulary_model, tmp_path / "short")
    settings = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 16}))
    teacher = {"mode": "live", "context": 16, "min_context": 4}
    path = config("run", short, guidance={"method": "kld"}, teacher=teacher)
    assert train_here(path) == 2
    assert "data.seq_len: 32 tokens, but the teacher reads at most 16" in capsys.readouterr().err

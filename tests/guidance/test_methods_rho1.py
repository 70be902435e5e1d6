"""The paper's other methods in the same loop: Rho-1, and which options go together."""

import json
import math
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from families import HARD_TEXTS, TEXTS
from method_runs import CPU, config_writer, prepared, run_config, same_weights
from runs import metrics, train_here
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance import GuidanceTensors, token_weights
from vocagno.guidance.batches import Collator
from vocagno.guidance.mappings import (
    identity_map,
)
from vocagno.guidance.pieces import SameRows
from vocagno.teacher.live import RowTeacher
from vocagno.teacher.scoring import load_scorer

NAN = float("nan")


@pytest.fixture
def config(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    return config_writer(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model)


@pytest.fixture
def rows(tmp_path, tokenizer_files):
    return prepared(tmp_path, tokenizer_files)


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
def test_with_one_vocabulary_vocagno_is_rho1(tmp_path, config, scope):
    for method in ("vocagno", "rho1", "cpt"):
        guidance = {"method": method, "scope": scope}
        assert train_here(config(method, guidance=guidance)) == 0
    assert same_weights(tmp_path / "vocagno", tmp_path / "rho1")
    assert not same_weights(tmp_path / "vocagno", tmp_path / "cpt")
    logs = [metrics(tmp_path / method)[0] for method in ("vocagno", "rho1")]
    for one, other in zip(*logs, strict=True):
        assert one["mean_excess_loss"] == other["mean_excess_loss"]
        assert one["coverage"] == other["coverage"] == 1.0


@pytest.mark.parametrize("family", ["llama", "metaspace-first", "byte-level"])
def test_counting_tokens_finds_what_searching_finds(tokenizers, family):
    """Rows begin anywhere, between the bytes of a character too; scores are of whole documents."""
    rng = np.random.default_rng(0)
    tokens = TokenSpans(tokenizers[family])
    for text in [*TEXTS[:6], *HARD_TEXTS]:
        spans = tokens.encode([text]).spans
        bounds = sorted(rng.integers(0, len(spans) + 1, 2))
        part = spans[bounds[0] : bounds[1]]
        cu_seqlens = [np.array([0, len(side)]) for side in (part, spans)]
        found = identity_map(part, spans, *cu_seqlens, [7], [True])
        expected = np.full((len(part), 2), -1)
        for place in np.flatnonzero(part[:, 0] < part[:, 1]):
            expected[place] = bounds[0] + place, bounds[0] + place + 1
        np.testing.assert_array_equal(found, expected)


def test_repeated_spans_are_counted_from_the_row_border():
    """Five bytes of one character, of which a row holds the last two."""
    teacher = np.array([[0, 1], *[[1, 5]] * 4, [5, 6]], np.int32)
    student = np.array([[0, 0], [1, 5], [1, 5], [5, 6]], np.int32)
    cu_seqlens = np.array([0, 4]), np.array([0, 6])
    mapping = identity_map(student, teacher, *cu_seqlens, [0], [True])
    assert mapping.tolist() == [[-1, -1], [3, 4], [4, 5], [5, 6]]
    # A piece behind another one begins where its document does, wherever its row ends.
    first = np.array([[0, 1], [1, 5], [1, 5]], np.int32)
    cu_seqlens = np.array([0, 3]), np.array([0, 6])
    mapping = identity_map(first, teacher, *cu_seqlens, [0], [False])
    assert mapping.tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ([[0, 2], [2, 3]], r"document 7: the student's token of bytes \[1, 2\) is \[2, 3\) in"),
        ([[0, 1]], r"document 7: the student's token of bytes \[1, 2\) is missing in"),
    ],
)
def test_other_tokens_are_refused_by_document_and_bytes(teacher, message):
    student, teacher = np.array([[0, 1], [1, 2]], np.int32), np.array(teacher, np.int32)
    if len(teacher) == 2:
        student[0] = 0, 2
        student[1] = 1, 2
    with pytest.raises(GuidanceError, match=message):
        identity_map(student, teacher, np.array([0, 2]), np.array([0, len(teacher)]), [7], [True])


@pytest.mark.parametrize(
    ("method", "mode"), [("rho1", "stored"), ("rho1", "live"), ("kld", "live")]
)
def test_another_vocabulary_is_refused_by_a_token(config, teacher_model, capsys, method, mode):
    path = config(
        "run",
        teacher_model,
        guidance={"method": method},
        teacher={"model": str(teacher_model), "mode": mode},
    )
    assert train_here(path) == 2
    message = capsys.readouterr().err
    assert f"guidance.method: {method} needs a teacher with the student's vocabulary" in message
    assert "'<unk>', id 0 of" in message
    assert "is no token of" in message


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
def test_a_teacher_reads_the_rows_as_the_student_does(
    tmp_path, rows, same_vocabulary_model, isolate
):
    from transformers import AutoModelForCausalLM

    store, _ = rows
    guidance = GuidanceConfig(method="rho1", criterion="excess_and_entropy", scope="micro_batch")
    config = run_config(tmp_path, same_vocabulary_model, guidance, isolate=isolate)
    scorer = load_scorer(config.teacher, TokenSpans(same_vocabulary_model), CPU)
    teacher = RowTeacher(scorer, guidance, CPU, config.data, 1)
    teacher._rows = 2  # several passes
    batch = Collator(SameRows(), guidance, config.data)([store[index] for index in range(5)])
    tensors = batch.to(CPU)
    given = teacher.guide(None, tensors, teacher.plan(None))
    model = AutoModelForCausalLM.from_pretrained(same_vocabulary_model)
    extra = {name: tensors[name] for name in ("attention_mask", "position_ids") if name in tensors}
    with torch.no_grad():
        log_p = model(tensors["input_ids"], **extra).logits.double().log_softmax(-1)
    labels = tensors["labels"]
    nll = -log_p.gather(2, labels.clamp_min(0)[..., None]).squeeze(2)
    valid = labels >= 0
    assert torch.equal(given["teacher_loss"].isfinite(), valid)
    torch.testing.assert_close(given["teacher_loss"][valid].double(), nll[valid], atol=1e-4, rtol=0)
    entropy = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(given["entropy"].double(), entropy, atol=1e-4, rtol=0)
    counts = batch.counts
    assert counts.predicted == int(valid.sum())
    assert counts.kept == math.ceil(0.4 * int(valid.sum()))


def test_two_criteria_keep_what_is_best_by_the_worse_place():
    """By hand: of five competitors two are kept; places by excess 0..4 from the left."""
    student = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 9.0]])
    teacher = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, NAN]])
    entropy = torch.tensor([[9.0, 1.0, 5.0, 0.0, 2.0, 0.0]])  # places 4, 1, 3, 0, 2
    labels = torch.zeros(1, 6, dtype=torch.int64)
    config = GuidanceConfig(method="rho1", criterion="excess_and_entropy", unmapped="exclude")
    weights = token_weights(
        student, GuidanceTensors(teacher_loss=teacher, entropy=entropy), labels, config
    )
    # Worse places: 4, 1, 3, 3, 4; the third and the fourth are equal, and the third is further
    # behind the teacher.
    assert weights.tolist() == [[0, 1, 1, 0, 0, 0]]
    with pytest.raises(ValueError, match="needs the teacher's entropies"):
        token_weights(student, teacher, labels, config)


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


# --- configuration


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vocagno", "chunks": 8}, "guidance.chunks: is for guidance.method chunk, not"),
        ({"criterion": "excess_and_entropy"}, "guidance.criterion: is for guidance.method rho1"),
        ({"method": "kld", "pairing": "aligned"}, "guidance.pairing: is for guidance.method uld"),
        ({"distillation_weight": 1.0}, "is for guidance.method kld and uld, not vocagno"),
        ({"method": "uld", "distillation_weight": -1.0}, "distillation_weight is negative: -1.0"),
        ({"method": "chunk", "chunks": 0}, "guidance.chunks must be at least 1, got 0"),
        ({"method": "chunk", "scope": "micro_batch"}, "guidance.scope: micro_batch: chunks are"),
        ({"method": "chunk", "normalize": "selected"}, "guidance.normalize: selected: how many"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        GuidanceConfig(**options)


@pytest.mark.parametrize(
    ("guidance", "message"),
    [
        ({"method": "kld"}, "guidance.method: needs more of the teacher than its stored losses"),
        ({"method": "uld"}, "guidance.method: needs more of the teacher than its stored losses"),
        (
            {"method": "rho1", "criterion": "excess_and_entropy"},
            "guidance.criterion: needs more of the teacher than its stored losses",
        ),
    ],
)
def test_what_needs_a_live_teacher(config, capsys, guidance, message):
    assert train_here(config("run", guidance=guidance)) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_go_together(config, capsys):
    live = {"mode": "live"}
    for sections, message in (
        (
            {"guidance": {"method": "kld"}, "train": {"sample_every": 2}, "teacher": live},
            "with guidance.method: kld it chooses nothing",
        ),
        (
            {"guidance": {"method": "chunk", "selection": "random"}, "train": {"sample_every": 2}},
            "with guidance.method: chunk at random it chooses nothing",
        ),
        ({"guidance": {"method": "rho1"}, "teacher": {"model": None}}, "guidance needs a teacher"),
    ):
        assert train_here(config("run", **sections)) == 2
        assert message in capsys.readouterr().err


def test_a_teacher_too_short_for_the_rows_is_refused_before_it_is_loaded(
    tmp_path, config, same_vocabulary_model, capsys
):
    short = shutil.copytree(same_vocabulary_model, tmp_path / "short")
    settings = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 16}))
    path = config(
        "run",
        short,
        guidance={"method": "kld"},
        teacher={"mode": "live", "context": 16, "min_context": 4},
    )
    assert train_here(path) == 2
    assert "data.seq_len: 32 tokens, but the teacher reads at most 16" in capsys.readouterr().err

"""Baked losses and weights are those that training would see."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from families import TEXTS
from token_streams import write_losses
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import cut_rows, join_documents
from vocagno.errors import ConfigError
from vocagno.guidance.batches import Collator
from vocagno.guidance.selective import token_weights
from vocagno.guidance.tensors import GuidanceTensors
from vocagno.integrations.baking import Baker, check_rule
from vocagno.teacher.scores import DocumentScores
from vocagno.tokens.id_texts import TokenizedTexts

LONG = "\n".join(TEXTS)
DOCUMENTS = [f"{number}: {text}" for number, text in enumerate([*TEXTS[:11], LONG, "", "a\n\nb"])]
DEFAULT = GuidanceConfig()


class InOrder:
    """The scores of the documents by their numbers."""

    def __init__(self, store):
        self.store = store

    def piece(self, document, first_byte, end_byte):
        return self.store.piece(document, first_byte, end_byte)


@pytest.fixture
def made(tmp_path, tokenizers):
    """The student, the scores, and all documents as one row: BOS, tokens, EOS."""
    spans = TokenSpans(tokenizers["llama"])
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], DOCUMENTS, unscored=0.02)
    eos = spans.token_id("</s>")
    stream = join_documents(spans.encode(DOCUMENTS), 0, spans.prefix_ids, eos)
    (row,) = cut_rows(stream, len(stream.ids))
    return spans, store, row


def baked(made, losses, rule=None):
    spans, store, row = made
    given = spans.texts_and_tokens(row.ids, np.concatenate([[0], np.cumsum(row.num_tokens)]))
    assert given[0] == DOCUMENTS
    return Baker(spans, store, losses, rule).bake(*given)


def collator(made, guidance):
    spans, store, row = made
    data = DataConfig(train="unused", seq_len=len(row.ids) - 1)
    return Collator(InOrder(store), guidance, data, spans.line_ends())


@pytest.mark.parametrize(
    ("unit", "aggregation"),
    [*(("token", how) for how in ("max", "mean", "sum", "min")), ("group", "max")],
)
def test_losses_are_those_of_the_collator(made, unit, aggregation):
    guidance = GuidanceConfig(unit=unit, aggregation=aggregation)
    found = baked(made, guidance)
    expected = collator(made, guidance).aligned([made[2]])
    np.testing.assert_array_equal(found.losses, expected.teacher_loss.astype(np.float16))
    assert 0.5 < np.isfinite(found.losses).mean() < 0.95
    assert found.weights is None


def test_tokens_without_text_have_no_loss(made):
    _, _, row = made
    found = baked(made, DEFAULT, DEFAULT)
    special = row.spans[:, 0] == row.spans[:, 1]
    assert special.sum() >= 2 * len(DOCUMENTS)
    assert np.isnan(found.losses[special]).all()
    assert (found.weights[special] == 255).all()


@pytest.mark.parametrize(
    "rule",
    [
        DEFAULT,
        GuidanceConfig(unit="token", window_max_loss=1.5),
        GuidanceConfig(unmapped="exclude"),
        GuidanceConfig(unmapped="mean"),
        GuidanceConfig(scope="micro_batch"),
    ],
)
@pytest.mark.parametrize("losses", [GuidanceConfig(unit="token"), DEFAULT])
def test_weights_are_those_of_training_whatever_the_student_loses(made, rule, losses):
    found = baked(made, losses, rule)
    tensors = collator(made, rule)([made[2]]).tensors
    student_nll_BT = torch.rand(tensors["labels"].shape) * 10
    given = student_nll_BT, GuidanceTensors.of(tensors), tensors["labels"], rule
    expected = token_weights(*given)[0].numpy()
    np.testing.assert_array_equal(found.weights[1:], np.round(255 * expected).astype(np.uint8))
    assert 0.1 < (found.weights == 255).mean() < 0.9


def test_counts(made):
    spans, _, row = made
    found = baked(made, GuidanceConfig(unit="token"))
    view = collator(made, GuidanceConfig(unit="token")).aligned([row])
    counts = found.counts
    assert counts["documents"] == len(DOCUMENTS)
    assert counts["tokens"] == len(row.ids)
    assert counts["missing_tokens"] == counts["missing_documents"] == 0
    assert counts["losses"] == np.isfinite(found.losses).sum()
    assert counts["with_text"] == view.with_text.sum()
    assert counts["scored"] == np.isfinite(view.teacher_loss).sum()
    assert counts["scored"] <= counts["scorable"] < counts["with_text"]
    assert spans.prefix_ids


def test_documents_are_found_by_their_text(made):
    """In any order, twice, and not if they were edited."""
    spans, store, _ = made
    texts = [DOCUMENTS[4], "unknown", DOCUMENTS[1], DOCUMENTS[4], f"{DOCUMENTS[2]}."]
    tokens = spans.encode(texts)
    found = Baker(spans, store, GuidanceConfig(unit="token")).bake(texts, tokens)
    assert (found.counts["documents"], found.counts["missing_documents"]) == (5, 2)
    sizes = np.diff(tokens.cu_seqlens)
    assert found.counts["missing_tokens"] == sizes[1] + sizes[4]
    first, unknown, _, again, edited = (found.losses[tokens.text(i)] for i in range(5))
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).any()
    assert np.isnan(unknown).all()
    assert np.isnan(edited).all()


def test_a_loss_beyond_float16_is_none(made):
    spans, store, _ = made
    text = DOCUMENTS[0]
    spans_of_teacher = store.document(0).spans
    scores = DocumentScores(spans_of_teacher, np.full(len(spans_of_teacher), 6e4, np.float16))
    tokens = spans.encode([text])
    one = TokenizedTexts(tokens.ids[:1], tokens.spans[:1] * 0, np.array([0, 1]), tokens.proved)
    one.spans[0] = [0, len(text.encode())]  # one token of the student for all of the teacher's

    class Store:
        def shards(self):
            return store.shards()

        def document(self, index):
            return scores

    guidance = GuidanceConfig(unit="token", aggregation="sum")
    assert np.isnan(Baker(spans, Store(), guidance).bake([text], one).losses).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_fraction": 0.4}, "guidance.top_fraction: which tokens it keeps depends on the stud"),
        ({"max_threshold": 0.0}, "guidance.max_threshold: which tokens"),
        ({"method": "cpt"}, "guidance.method: cpt: weights can be baked for vocagno only"),
        ({"method": "rho1"}, "guidance.method: rho1: weights"),
    ],
)
def test_rules_that_need_the_student_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_rule(GuidanceConfig(**options))

"""The collator by hand: which teacher loss stands at which label, and what is counted."""

import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader

import vocagno
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import EMPTY_ROW, bytes_of_tokens, cut_rows, join_documents
from vocagno.guidance import collator as data_module
from vocagno.guidance.collator import Collator
from vocagno.guidance.methods import base
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.score_store import DocumentScores
from vocagno.tokens.token_spans import TokenizedTexts
from vocagno.training.step import GuidedStudent

NAN = float("nan")


def scored(spans, nll):
    return DocumentScores(np.array(spans, np.int32).reshape(-1, 2), np.array(nll, np.float16))


PROOFREAD = scored([[0, 2], [2, 7], [7, 9]], [NAN, 0.25, 0.75])
"""As pr|oofre|ad, without a BOS."""
AB = scored([[0, 2]], [1.5])
"""As one token, with a BOS."""
SCORES = ScoresInOrder([PROOFREAD, AB])


def rows(seq_len):
    """The student: BOS pro|of|read EOS, BOS a|b EOS."""
    spans = np.array([[0, 3], [3, 5], [5, 9], [0, 1], [1, 2]], np.int32)
    ids = np.array([10, 11, 12, 13, 14], np.int32)
    tokens = TokenizedTexts(ids, spans, np.array([0, 3, 5]), np.ones(2, bool))
    return cut_rows(join_documents(tokens, 0, (1,), 2), seq_len)


def collate(seq_len, scores=SCORES, isolate=False, **guidance):
    data = DataConfig(train="unused", seq_len=seq_len, isolate=isolate)
    guidance = GuidanceConfig(**{"top_fraction": 0.4} | guidance)
    return Collator(scores, guidance, data)(rows(seq_len))


def counts_of(batch):
    return batch.counts._asdict()


def test_bos_eos_document_starts_and_padding_by_hand():
    batch = collate(10)
    tensors = batch.inputs() | {"reasons": batch.reasons}
    # BOS   pro  of  read  EOS  BOS  a  b  EOS  padding
    assert tensors["input_ids"].tolist() == [[1, 10, 11, 12, 2, 1, 13, 14, 2, 0]]
    assert tensors["labels"].tolist() == [[10, 11, 12, 2, 1, 13, 14, 2, -100, -100]]
    # pro covers pr (no loss) and oofre; of lies in oofre; read covers oofre and ad; a, b lie in ab
    expected = [0.25, 0.25, 0.75, NAN, NAN, 1.5, 1.5, NAN, NAN, NAN]
    np.testing.assert_array_equal(tensors["teacher_loss"][0], np.array(expected, np.float32))
    assert tensors["reasons"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 1, 1, 1]]
    of_text = dict.fromkeys(("with_text", "mapped", "scorable", "scored"), 5)
    chosen = {"predicted": 8, "kept": 2 + 3, "competing": 5, "included": 3, "special": 3}
    none = dict.fromkeys(("truncated", "hole", "unscored", "missing", "partial"), 0)
    assert counts_of(batch) == of_text | chosen | none


@pytest.mark.skipif(sys.platform == "win32", reason="the worker is forked")
def test_a_worker_aligns_on_one_core(monkeypatch):
    """Several workers, each with threads for all cores, would stand in each other's way."""

    def threads(_):
        asked = []

        def align(*arguments, num_threads, **cu_seqlens):
            asked.append(num_threads)
            return vocagno.align(*arguments, num_threads=num_threads, **cu_seqlens)

        monkeypatch.setattr(base, "align", align)
        collate(10)
        return asked

    for workers, expected in ((0, [None]), (1, [1])):
        context = "fork" if workers else None
        loader = DataLoader(
            [0], None, num_workers=workers, multiprocessing_context=context, collate_fn=threads
        )
        assert list(loader) == [expected]


def test_loading_takes_no_number_of_the_models_random_state():
    before = torch.get_rng_state()
    assert list(data_module.loader([1, 2], [[0], [1]], list, 0)) == [[1], [2]]
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_cut_inside_a_document_by_hand():
    batch = collate(2)
    labels = batch.labels.tolist()
    assert labels == [[10, 11], [12, 2], [1, 13], [14, 2]]
    expected = [[0.25, 0.25], [0.75, NAN], [NAN, 1.5], [1.5, NAN]]
    np.testing.assert_array_equal(batch.teacher_loss, np.array(expected, np.float32))


GROUPS = {"unit": "group", "top_fraction": None, "max_threshold": 0.0}


@pytest.mark.parametrize(
    ("seq_len", "isolate", "first_nll", "losses", "partial"),
    [
        # BOS pro of read EOS BOS a b EOS: 'proofread' is one group, of which pr has no loss
        (10, False, NAN, [NAN, NAN, NAN, NAN, NAN, 0.75, 0.75, NAN, NAN, NAN], 3),
        (10, False, 0.5, [0.5, 0.5, 0.5, NAN, NAN, 0.75, 0.75, NAN, NAN, NAN], 0),
        (10, True, 0.5, [0.5, 0.5, 0.5, NAN, NAN, 0.75, 0.75, NAN, NAN, NAN], 0),
        # BOS pro of | of read EOS | EOS BOS a | a b EOS: every group is cut
        (2, False, 0.5, [[NAN, NAN]] * 4, 5),
    ],
)
def test_a_group_has_a_loss_only_if_it_is_whole(seq_len, isolate, first_nll, losses, partial):
    proofread = scored(PROOFREAD.spans, [first_nll, *PROOFREAD.nll[1:]])
    batch = collate(seq_len, ScoresInOrder([proofread, AB]), isolate, **GROUPS)
    expected = np.array(losses, np.float32).reshape(batch.labels.shape)
    np.testing.assert_array_equal(batch.teacher_loss, expected)
    groups = batch.groups.numpy()
    assert ((groups < 0) == np.isnan(expected)).all()
    counts = counts_of(batch)
    assert counts["partial"] == partial
    assert counts["scored"] == 5  # a group that is cut is not the teacher's fault
    assert counts["competing"] == np.isfinite(expected).sum()


def test_lines_end_with_the_token_that_breaks_them_and_with_documents():
    breaks = np.zeros(20, bool)
    breaks[[11, 13]] = True
    guidance = GuidanceConfig(window="line", window_max_loss=1.0, **GROUPS)
    data = DataConfig(train="unused", seq_len=10)
    batch = Collator(SCORES, guidance, data, breaks)(rows(10))
    # BOS pro of read EOS | BOS a b EOS: of and a break
    assert batch.line.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, -1, -1]]
    assert batch.line_bytes.tolist() == [[3, 2, 4, 0, 0, 1, 1, 0, 0, 0]]
    with pytest.raises(ValueError, match="line_ends"):
        Collator(SCORES, guidance, data)
    Collator(None, guidance, data)(rows(10))  # nothing is ranked


@pytest.mark.parametrize(("how", "read"), [("mean", 0.5), ("sum", 1.0), ("min", 0.25)])
def test_a_token_has_the_mean_sum_or_least_teacher_loss(how, read):
    assert collate(10, aggregation=how).teacher_loss[0, 2] == read


def test_the_first_teacher_token_of_a_document_is_nobodys_fault():
    scores = ScoresInOrder([scored([[0, 3], [3, 9]], [NAN, 1.0]), AB])
    counts = counts_of(collate(10, scores))
    assert (counts["with_text"], counts["mapped"]) == (5, 5)
    assert (counts["scorable"], counts["scored"], counts["unscored"]) == (4, 4, 1)


def test_a_teacher_cut_short_is_counted_as_truncated():
    scores = ScoresInOrder([scored([[0, 4]], [1.0]), scored([], [])])
    counts = counts_of(collate(10, scores))
    assert (counts["truncated"], counts["mapped"], counts["with_text"]) == (3, 2, 5)


@pytest.mark.parametrize("how", ["max", "sum"])
def test_the_teacher_s_own_losses_are_added_up_by_hand(how):
    """Each token once, whatever is aggregated; those that share text with the row."""
    assert collate(2).teacher_sums is None
    batch = collate(2, unmapped="mean", aggregation=how)
    # BOS pro of | of read EOS | EOS BOS a | a b EOS: pr has no loss, oofre is in two rows
    assert batch.teacher_sums.tolist() == [[0.25, 1], [1.0, 2], [1.5, 1], [1.5, 1]]
    assert collate(10, unmapped="mean").teacher_sums.tolist() == [[2.5, 3]]


def test_losses_of_a_prompt_are_in_no_mean():
    data = DataConfig(train="unused", seq_len=10)
    guidance = GuidanceConfig(unmapped="mean", top_fraction=0.4)
    (row,) = rows(10)
    # Neither nor; BOS pro, BOS a b; all of the first; all of both
    cases = [([0, 0], [2.5, 3]), ([2, 3], [1.0, 2]), ([5, 0], [1.5, 1]), ([5, 4], [0, 0])]
    for num_prompt, expected in cases:
        asked = replace(row, num_prompt=np.array(num_prompt, np.int32))
        batch = Collator(SCORES, guidance, data)([asked])
        assert batch.teacher_sums.tolist() == [expected]


def test_without_scores_nothing_is_aligned():
    batch = collate(10, None, method="cpt")
    assert batch.teacher_loss.isnan().all()
    counts = counts_of(batch)
    assert (counts["predicted"], counts["kept"], counts["with_text"]) == (8, 8, 0)


def test_isolated_documents_read_nothing_of_each_other():
    batch = collate(10, isolate=True)
    assert batch.labels.tolist() == [[10, 11, 12, 2, -100, 13, 14, 2, -100, -100]]
    assert batch.attention_mask is None  # it is made on the device
    model = tiny_llama(20, attn_implementation="sdpa")
    tensors = batch.to("cpu").inputs()
    assert tensors["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0]]
    with torch.no_grad():
        packed = model(
            input_ids=tensors["input_ids"],
            attention_mask=tensors["attention_mask"],
            position_ids=tensors["position_ids"],
        ).logits[0]
        for place in (slice(0, 5), slice(5, 9)):
            alone = model(input_ids=tensors["input_ids"][:, place]).logits[0]
            torch.testing.assert_close(packed[place], alone)


def test_a_loop_that_moves_no_batch_keeps_documents_apart_too():
    student = GuidedStudent(
        tiny_llama(20, attn_implementation="sdpa"), GuidanceConfig(method="cpt")
    )
    batch = collate(10, isolate=True)
    moved = student(**batch.to("cpu").inputs()).loss
    assert torch.equal(student(**batch.inputs()).loss, moved)
    with pytest.raises(TypeError, match="reasons: no columns of the student's loss"):
        student(**batch.inputs(), reasons=batch.reasons)


def test_inputs_that_are_not_shifted_are_none_of_the_loss():
    batch = collate(10)
    guidance = GuidanceConfig(top_fraction=0.4)
    replace(batch, input_ids=torch.zeros(1, 11)).check(batch.labels, guidance)
    with pytest.raises(ValueError, match="teacher_loss"):
        replace(batch, teacher_loss=torch.zeros(1, 11)).check(batch.labels, guidance)


@pytest.mark.parametrize("isolate", [False, True])
def test_what_travels_to_a_device_is_contiguous_and_small(isolate):
    """Whatever is not contiguous would be copied by way of pageable memory, for which a host waits;
    the mask of a row of 2,048 tokens would be 4 MB."""
    batch = collate(2048, isolate=isolate)
    tensors = [value for value in batch.inputs().values() if torch.is_tensor(value)]
    assert all(tensor.is_contiguous() for tensor in tensors)
    assert (batch.piece is not None) == isolate
    size = sum(tensor.nbytes for tensor in tensors)
    assert size <= 32 * batch.labels.numel()


def test_an_empty_row_asks_for_nothing():
    data = DataConfig(train="unused", seq_len=4)
    batch = Collator(None, GuidanceConfig(top_fraction=0.4), data)([EMPTY_ROW, EMPTY_ROW])
    assert batch.labels.tolist() == [[-100] * 4] * 2
    assert counts_of(batch)["predicted"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_of_tokens_are_those_of_the_text(seed):
    """Each byte counts for one token: the first that covers it, or one of those with its span."""
    draw = np.random.default_rng(seed)
    pieces = []
    for _ in range(3):
        spans, start, end = [], 0, 0
        for _ in range(draw.integers(1, 12)):
            if not spans or draw.random() < 0.6:  # else once more the same span
                start, end = end - draw.integers(0, 1 + min(2, end)), end + draw.integers(0, 5)
            spans.append((start, end))
        pieces.append(np.array(spans, np.int32))
    sizes = bytes_of_tokens(np.concatenate(pieces), np.array(list(map(len, pieces))))
    for spans in pieces:
        piece_sizes, sizes = sizes[: len(spans)], sizes[len(spans) :]
        assert piece_sizes.sum() == spans[:, 1].max()
        covered = 0
        for span in dict.fromkeys(map(tuple, spans.tolist())):
            same = piece_sizes[(spans == span).all(1)]
            assert same.sum() == max(0, span[1] - max(covered, span[0]))
            assert np.ptp(same) <= 1
            assert (np.diff(same) <= 0).all()
            covered = max(covered, span[1])
    assert len(sizes) == 0

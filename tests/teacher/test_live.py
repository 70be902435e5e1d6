"""A live teacher on rows: the losses that `vocagno score` gives for their pieces as documents."""

import json
import pickle
import shutil

import numpy as np
import pytest

from live_documents import DOCUMENTS, pieces

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from method_runs import live_teacher, prepared
from runs import metrics, train_here
from tiny_models import save_llama, tiny_llama
from vocagno import TokenSpans, align, reduce
from vocagno.cli.app import main as command_line
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import TextStore
from vocagno.data.store.format import RefusalLimit
from vocagno.data.store.shards import StoreError
from vocagno.models.losses import causal_shift
from vocagno.teacher.candidates import NONE, Candidates
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import ScoreStore

CPU = torch.device("cpu")


@pytest.fixture
def setting(tmp_path, tokenizer_files, teacher_model):
    """Rows of a small corpus, its texts, and what makes a live teacher and a collator of them."""
    rows, texts = prepared(tmp_path, tokenizer_files)
    assert len(texts) == len(DOCUMENTS)

    def build(aggregation="max", unmapped="include", **teacher):
        guidance = GuidanceConfig(aggregation=aggregation, unmapped=unmapped, top_fraction=0.4)
        return live_teacher(texts, teacher_model, guidance, **teacher)

    return rows, texts, build


@pytest.mark.parametrize(
    ("aggregation", "options"),
    [
        ("max", {}),
        ("mean", {"bos": "<|endoftext|>"}),
        ("max", {"context": 16, "min_context": 5}),
        ("sum", {"batch_tokens": 40, "batching": "packed"}),
    ],
)
def test_live_is_scoring_the_pieces_as_documents(
    tmp_path, setting, teacher_model, aggregation, options
):
    """The losses of a live teacher are those of the command on the same pieces, each at the token
    that it belongs to."""
    rows, _, build = setting
    live, collator = build(aggregation, "mean", **options)
    cut = [piece for index in range(len(rows)) for piece in pieces(rows[index])]
    check_that_cuts_are_hard(rows, teacher_model)
    write_corpus(tmp_path / "pieces.jsonl", [text for _, text, _ in cut])
    named = [part for name, value in options.items() for part in (f"--teacher.{name}", str(value))]
    arguments = ["--teacher.model", str(teacher_model), *named, "--cache", str(tmp_path / "cache")]
    command = ["score", str(tmp_path / "pieces.jsonl"), "--out", str(tmp_path / "s"), *arguments]
    assert command_line(command) == 0
    store, expected, piece_nll = ScoreStore(tmp_path / "s"), [], []
    for number, (spans, _, first) in enumerate(cut):
        document = store.document(number)
        starts, ends = (document.spans + first).T
        inside = (starts < ends) & (starts < spans[:, 1].max()) & (ends > spans[:, 0].min())
        piece_nll.append(document.nll[inside & np.isfinite(document.nll)].astype(float))
        expected.append(reduce(document.nll, align(spans, document.spans + first), aggregation))
    flat = np.concatenate(expected)
    before = piece = 0
    for start in range(0, len(rows), 5):
        chosen = [rows[index] for index in range(start, min(start + 5, len(rows)))]
        batch = collator(chosen)
        guidance = live.guide(batch.live_text, {}, live.plan(batch.live_text))
        losses, sums = guidance["teacher_loss"], guidance["teacher_sums"]
        assert torch.equal(losses.isnan(), batch.teacher_loss.isnan())
        for number, row in enumerate(chosen):
            of_row = np.concatenate(piece_nll[piece : piece + len(row.documents)])
            assert sums[number, 1] == len(of_row)
            assert float(sums[number, 0]) == pytest.approx(of_row.sum(), rel=2e-3, abs=4e-3)
            piece += len(row.documents)
            _, expected_losses = causal_shift(flat[before : before + len(row.ids)])
            row_losses = losses[number, : len(expected_losses)].numpy()
            np.testing.assert_allclose(row_losses, expected_losses, atol=4e-3, rtol=2e-3)
            before += len(row.ids)
    assert np.isfinite(flat).mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"context": 16, "min_context": 5, "batch_tokens": 40}])
def test_live_candidates_are_those_of_a_store_of_the_pieces(
    tmp_path, setting, teacher_model, options
):
    """Sees candidates that go to another token, and entropies or losses of tokens that have
    none."""
    rows, _, build = setting
    live, collator = build(candidates=5, **options)
    texts = [text for index in range(len(rows)) for _, text, _ in pieces(rows[index])]
    config = TeacherConfig(model=str(teacher_model), candidates=5, **options)
    corpus = scan(write_corpus(tmp_path / "pieces.jsonl", texts))
    teacher = ConfiguredTeacher(config, tmp_path / "cache", CPU)
    store = teacher.scores(lambda: corpus, None, show_progress=False)
    batch = collator([rows[index] for index in range(len(rows))])
    text = batch.live_text
    passes = live.plan(text)
    nll_M, ids_MK, codes_MK, entropy_M = live.token_candidates(text, passes, len(passes) + 1)
    assert torch.equal(nll_M.nan_to_num(), live.token_losses(text, passes).nan_to_num())
    documents = [store.document(number, candidates=True) for number in range(len(texts))]
    stored = Candidates.concatenate([document.candidates for document in documents])
    np.testing.assert_array_equal(batch.live_text.windowed.tokens.ids, stored.tokens)
    assert ids_MK.dtype == torch.int32
    # Batches of other shapes round otherwise: equal but for neighbours that are as likely.
    is_same = (ids_MK.numpy() == stored.ids).all(1)
    assert is_same.mean() > 0.99
    far = np.abs(codes_MK.numpy().astype(int) - stored.codes)
    assert far.max() <= 1
    assert (far > 0).mean() < 0.01
    assert np.abs(entropy_M.numpy().astype(int) - stored.entropy).max() <= 1
    has_none = (ids_MK < 0).all(1)
    assert torch.equal(has_none, entropy_M == NONE)
    assert torch.equal(has_none, nll_M.isnan())
    assert 0 < has_none.sum() < len(has_none) / 2


@pytest.mark.slow
def test_each_sample_of_the_run_has_draws_of_its_own(setting):
    """A text that is read again gets other candidates, the same for any cut of a step; a window
    without a number gets those of a store."""
    rows, _, build = setting
    live, collator = build(candidates=3, sampled=True)
    chosen = [rows[index] for index in range(4)]

    def drawn(rows_of_batch, samples):
        batch = collator(rows_of_batch)
        passes = live.plan(batch.live_text, samples)
        return live.token_candidates(batch.live_text, passes, len(passes))[1]

    first, again = (drawn(chosen, [0, 1, 2, 3]) for _ in range(2))
    epoch_2 = drawn(chosen, [4, 5, 6, 7])
    assert torch.equal(first, again)
    assert 0.2 < (first != epoch_2).float().mean() < 1
    assert (drawn(chosen, None) != first).any()
    in_parts = torch.cat([drawn(chosen[:1], [0]), drawn(chosen[1:], [1, 2, 3])])
    assert (in_parts != first).float().mean() < 0.01  # batches of other shapes round otherwise


def check_that_cuts_are_hard(rows, teacher_model):
    """Some rows begin inside a character, some inside a token of the teacher's."""
    teacher = TokenSpans(teacher_model)
    in_character = in_token = 0
    for index in range(len(rows)):
        row = rows[index]
        first, document = int(row.spans[0, 0]), int(row.documents[0])
        raw = DOCUMENTS[document].encode()
        if row.spans[0, 1] > first:
            in_character += raw[first] & 0xC0 == 0x80
            starts = teacher.encode([DOCUMENTS[document]]).spans[:, 0]
            in_token += first not in starts
    assert in_character > 3
    assert in_token > 3


def test_what_is_counted_is_what_the_teacher_will_say(setting):
    """Sees counts of other tokens than those that get a loss from the teacher."""
    rows, _, build = setting
    live, collator = build()
    batch = collator([rows[index] for index in range(len(rows))])
    losses = live.guide(batch.live_text, batch.inputs(), live.plan(batch.live_text))["teacher_loss"]
    finite = losses.isfinite() & (batch.labels >= 0)
    counts = batch.counts._asdict()
    assert counts["competing"] == int(finite.sum())
    assert counts["mapped"] == counts["with_text"] > 500
    assert counts["scored"] == counts["scorable"] > 500


def test_a_collator_is_pickled_whole(setting):
    """Sees state that only a forked worker would have."""
    rows, _, build = setting
    collator = build()[1]
    sent = pickle.loads(pickle.dumps(collator))
    left, right = (collate([rows[0], rows[1]]) for collate in (collator, sent))
    assert torch.equal(left.input_ids, right.input_ids)
    np.testing.assert_array_equal(left.live_text.mapping_N2, right.live_text.mapping_N2)


def test_a_damaged_text_is_refused(setting):
    _, texts, _ = setting
    path = texts.shard(0).path
    folder = path.parent
    whole = path.read_bytes()
    place = whole.index(TEXTS[0].encode())
    path.write_bytes(whole[:place] + b"t" + whole[place + 1 :])
    with pytest.raises(StoreError, match="document 0 of this shard is damaged"):
        TextStore(folder).piece(0, 0, 4)
    assert TextStore(folder).piece(1, 0, 3) == (TEXTS[1][:3], 0)
    (damage,) = [message for _, message in TextStore(folder).damages() if "document" in message]
    assert "document 0" in damage


@pytest.mark.slow
def test_a_run_with_a_live_teacher(tmp_path, config):
    live = {"teacher": {"mode": "live", "context": 64, "min_context": 16}}
    assert train_here(config(**live, data={"num_workers": 2})) == 0
    (first, *_) = metrics(tmp_path / "run")[0]
    assert first["coverage"] == first["scored"] == 1.0
    assert first["mean_teacher_loss"] > 1
    assert 0 < first["teacher_share"] < 1
    assert not (tmp_path / "cache" / "scores").exists()
    saved = list((tmp_path / "run" / "checkpoints" / "step_6").glob("*.safetensors"))
    assert [file.name for file in saved] == ["model.safetensors"]  # and no teacher in it
    identity = json.loads((tmp_path / "run" / "materials.json").read_bytes())["live teacher"]
    assert (identity["context"], identity["unit"]) == (64, "nats")


@pytest.mark.slow
def test_another_live_teacher_is_refused(tmp_path, config, teacher_model, capsys, monkeypatch):
    from vocagno.training import loop

    path = config(teacher={"mode": "live"})
    step = loop.Training._step

    def stopped(self, number, *rest):
        if number == 4:  # what has not logged a step has not begun
            raise KeyboardInterrupt
        return step(self, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_step", stopped)
        assert train_here(path) == 130
    other = shutil.copytree(teacher_model, tmp_path / "other")
    tiny_llama(500, seed=2).save_pretrained(other)
    assert train_here(config(teacher={"mode": "live", "context": 64, "min_context": 16})) == 2
    assert "teacher.context is 64, but" in capsys.readouterr().err
    (tmp_path / "run" / "config.yaml").unlink()
    assert train_here(config(teacher={"mode": "live", "model": str(other)})) == 2
    assert "was made with another teacher of the live teacher" in capsys.readouterr().err


def test_all_that_goes_to_a_device_is_pinned_ahead(setting, monkeypatch):
    """By the thread that collates; pinning itself needs a GPU, so it is only watched here."""
    rows, _, build = setting
    live, collator = build("max", "mean", batch_tokens=64)
    pinned = set()

    def pin(tensor):
        copy = tensor.clone()
        pinned.add(id(copy))
        copies.append(copy)
        return copy

    copies = []  # held, so that no other gets the number of one
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(live.scorer, "device", torch.device("cuda"))
    batch = collator([rows[index] for index in range(5)]).pin_memory()
    passes = live.plan(batch.live_text)
    assert len(passes) > 1
    monkeypatch.setattr(live.scorer, "device", CPU)
    sent = []
    to = torch.Tensor.to

    def watched(tensor, *arguments, non_blocking=False, **options):
        if non_blocking:
            sent.append(id(tensor))
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    live.guide(batch.live_text, batch.to(CPU).inputs(), passes)
    assert len(sent) > 10
    assert set(sent) <= pinned


def test_pieces_that_the_teacher_cannot_read_are_missing(tmp_path, tokenizer_files, capsys):
    """Their tokens have no loss and count as missing; the others are as they are without them."""
    save_llama(tmp_path / "teacher", without_unknown_token("☃"), seed=1)
    rows, texts = prepared(tmp_path, tokenizer_files, ["the first", "a ☃", "the last"])
    folder, guidance = tmp_path / "teacher", GuidanceConfig(top_fraction=0.4)
    live, collator = live_teacher(texts, folder, guidance, bos="</s>")
    (row,) = (rows[number] for number in range(len(rows)))
    batch = collator([row])
    loss = live.guide(batch.live_text, {}, live.plan(batch.live_text))["teacher_loss"][0]
    document = np.repeat(row.documents, row.num_tokens)[1:]
    is_text = (row.spans[:, 0] < row.spans[:, 1])[1:]
    has_loss = loss.isfinite().numpy()[: len(document)]
    assert not has_loss[document == 1].any()
    assert has_loss[(document != 1) & is_text].all()
    assert batch.counts.missing == (document == 1).sum()
    assert "no teacher losses for document 1: cannot be tokenized" in capsys.readouterr().err
    limit = RefusalLimit("data.train", 3, 0)
    _, strict = live_teacher(texts, folder, guidance, bos="</s>", limit=limit)
    with pytest.raises(StoreError, match=r"data.train: .* of 1 of 3 documents .* document 1: "):
        strict([row])

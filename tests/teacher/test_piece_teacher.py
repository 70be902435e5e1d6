"""A store of pieces has the losses that the teacher gives at the student's context."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from corpora import write_corpus
from live_documents import DOCUMENTS, pieces
from method_runs import prepared
from runs import train_here, write_config
from vocagno import TokenSpans
from vocagno.cli.app import main as command_line
from vocagno.config.guidance import GuidanceConfig
from vocagno.integrations.baking.documents import Baker
from vocagno.integrations.columns import TeacherLossColumns
from vocagno.integrations.filtering import FilterRule, NoiseFilter
from vocagno.teacher.score_store import ScoreStore


@pytest.mark.slow
def test_each_loss_is_that_of_the_student_s_piece(
    tmp_path, tokenizer_files, teacher_model, monkeypatch, capsys
):
    documents = list(dict.fromkeys(DOCUMENTS))
    monkeypatch.setattr("live_documents.DOCUMENTS", documents)  # which `pieces` reads
    rows, _ = prepared(tmp_path, tokenizer_files, documents)
    text = write_corpus(tmp_path / "text.jsonl", documents)
    options = {"rows": rows.folder, "out": tmp_path / "store", "teacher.model": teacher_model}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    assert command_line(["score", str(text), *arguments, f"--cache={tmp_path}"]) == 0
    with_other_texts = write_corpus(tmp_path / "other.jsonl", documents[1:])
    assert command_line(["score", str(with_other_texts), *arguments]) == 2
    assert "--rows: " in capsys.readouterr().err
    sections = {"teacher": {"scores": str(tmp_path / "store")}, "guidance": {"min_coverage": 0.9}}
    config = write_config(tmp_path, text, tokenizer_files, teacher_model, **sections)
    for seq_len in (32, 16):
        arguments = f"--data.seq_len={seq_len}", f"--output={tmp_path / str(seq_len)}"
        assert train_here(config, *arguments) == 0
        assert ("in the pieces of other rows" in capsys.readouterr().err) == (seq_len == 16)
    store, spans = ScoreStore(tmp_path / "store"), TokenSpans(teacher_model)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_files / "student.json"), eos_token="</s>"
    )
    for reader in (
        lambda: NoiseFilter(store, FilterRule()),
        lambda: TeacherLossColumns(tokenizer, store),
        lambda: Baker(TokenSpans(tokenizer), store, GuidanceConfig()),
    ):
        with pytest.warns(UserWarning, match="in the pieces of other rows"):
            reader()
    model = AutoModelForCausalLM.from_pretrained(teacher_model).eval()
    losses = [{} for _ in documents]
    for number in range(len(rows)):
        row = rows[number]
        for document, (offsets, piece, first_byte) in zip(row.documents, pieces(row), strict=True):
            tokens = spans.encode([piece])
            if len(tokens.ids) > 1:
                ids = torch.from_numpy(tokens.ids.astype(np.int64))[None]
                with torch.no_grad():
                    log_p = model(ids).logits[0, :-1].log_softmax(-1)
                nll = -log_p.gather(1, ids[0, 1:, None])[:, 0].numpy()
                of_piece = {
                    (start + first_byte, end + first_byte): loss
                    for (start, end), loss in zip(tokens.spans[1:].tolist(), nll, strict=True)
                    if end + first_byte <= offsets[:, 1].max()
                }
                losses[document] = of_piece | losses[document]  # learnt in the first row of both
    compared = 0
    for number, expected in enumerate(losses):
        scores = store.document(number)
        assert (scores.spans[1:, 0] >= scores.spans[:-1, 0]).all()
        for span, loss in zip(scores.spans.tolist(), scores.nll.tolist(), strict=True):
            if np.isfinite(loss):
                assert loss == pytest.approx(expected[tuple(span)], rel=2e-3, abs=4e-3)
                compared += 1
    assert compared > 0.8 * store.num_tokens > 1000

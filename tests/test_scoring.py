"""The teacher's losses: the same as from full logits, whatever the batch and the window."""

import numpy as np
import pytest

from conftest import TEXTS, tiny_llama, write_corpus

torch = pytest.importorskip("torch")

from vocagno import TokenSpans
from vocagno.config import ConfigError, TeacherConfig
from vocagno.corpus import scan
from vocagno.scores import ScoreStore
from vocagno.shards import StoreError
from vocagno.training import head, scoring
from vocagno.training.head import (
    UnsupportedModelError,
    chunked_nll,
    hidden_states,
    language_head,
)
from vocagno.training.scoring import (
    Teacher,
    score_corpus,
    scores_made_from,
    windows,
)

CPU = torch.device("cpu")


def teacher_of(folder, tokenizer=None, **options):
    config = TeacherConfig(model=str(folder), **options)
    return Teacher(config, tokenizer or TokenSpans(folder), CPU)


def full_nll(model, prefix, ids):
    """From all logits at once; the first token has none without a prefix."""
    sequence = torch.tensor([[*prefix, *ids]])
    with torch.no_grad():
        logits = model(sequence).logits[0].double().log_softmax(-1)
    losses = [-float(logits[i - 1, sequence[0, i]]) for i in range(1, sequence.shape[1])]
    return np.array(losses if prefix else [np.nan, *losses])


@pytest.mark.parametrize("bos", [None, "<|endoftext|>"])
def test_scores_are_those_of_the_full_logits(teacher_model, bos):
    teacher = teacher_of(teacher_model, bos=bos, batch_tokens=64)
    texts = [*TEXTS[:5], "", "a", "∑ 😊"]
    spans = TokenSpans(teacher_model)
    for text, document in zip(texts, teacher.score(texts), strict=True):
        tokens = spans.encode([text])
        if not text:
            assert document.nll.shape == (0,)
            continue
        expected = full_nll(teacher.model, teacher.prefix.tolist(), tokens.ids.tolist())
        np.testing.assert_array_equal(document.spans, tokens.spans)
        np.testing.assert_allclose(document.nll, expected, atol=4e-3)


def test_a_planted_shift_by_one_is_seen(teacher_model, monkeypatch):
    monkeypatch.setattr(
        scoring, "causal_shift", lambda sequence: (sequence[..., 1:], sequence[..., 1:])
    )
    with pytest.raises(AssertionError):
        test_scores_are_those_of_the_full_logits(teacher_model, "<|endoftext|>")


def test_windows_by_hand():
    def cut(*arguments):
        return [(w.start, w.stop, w.score_from) for w in windows(0, *arguments)]

    assert cut(0, 6, 2) == []
    assert cut(1, 6, 2) == [(0, 1, 0)]
    assert cut(6, 6, 2) == [(0, 6, 0)]
    assert cut(7, 6, 2) == [(0, 6, 0), (4, 7, 6)]
    assert cut(12, 6, 2) == [(0, 6, 0), (4, 10, 6), (8, 12, 10)]
    with pytest.raises(ValueError, match="min_context"):
        cut(7, 6, 6)


def test_every_token_of_a_long_document_has_its_context(teacher_model):
    text = " ".join(TEXTS[:3])
    tokens = TokenSpans(teacher_model).encode([text])
    ids = tokens.ids.tolist()
    teacher = teacher_of(teacher_model, bos="<|endoftext|>", context=16, min_context=5)
    (document,) = teacher.score([text])
    prefix = teacher.prefix.tolist()
    for window in windows(0, len(ids), 16, 5):
        expected = full_nll(teacher.model, prefix, ids[window.start : window.stop])
        scored = slice(window.score_from, window.stop)
        np.testing.assert_allclose(
            document.nll[scored], expected[window.score_from - window.start :], atol=4e-3
        )
        assert window.score_from == 0 or window.score_from - window.start >= 5


def test_chunks_give_what_all_logits_give(monkeypatch):
    model = tiny_llama(50)
    hidden, labels = torch.randn(37, 32), torch.randint(0, 50, (37,))
    part = language_head(model)
    expected = torch.nn.functional.cross_entropy(
        hidden @ part.weight_VH.T, labels, reduction="none"
    )
    for elements in (1, 50, 400, 10**6):
        monkeypatch.setattr(head, "CHUNK_ELEMENTS", elements)
        torch.testing.assert_close(chunked_nll(hidden, part, labels), expected)


def test_low_precision_operands_still_give_float32_logits():
    part = language_head(tiny_llama(50).bfloat16())
    hidden, labels = torch.randn(9, 32).bfloat16(), torch.randint(0, 50, (9,))
    exact = torch.nn.functional.cross_entropy(
        hidden.double() @ part.weight_VH.double().T, labels, reduction="none"
    )
    nll = chunked_nll(hidden, part, labels)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll.double(), exact, atol=1e-5, rtol=1e-5)


def test_a_model_with_another_head_is_refused():
    model = tiny_llama(50)
    forward = model.forward

    def doubled(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits * 2 + 1
        return output

    model.forward = doubled
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        language_head(model)


def test_soft_capped_and_scaled_heads_are_understood():
    from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

    sizes = {
        "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    capped = Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=0.5, **sizes)).eval()
    scaled = CohereForCausalLM(CohereConfig(logit_scale=0.3, **sizes)).eval()
    for model in (capped, scaled):
        part = language_head(model)
        ids = torch.arange(10)[None]
        with torch.no_grad():
            expected = model(ids).logits[0]
            torch.testing.assert_close(part.logits(hidden_states(model, ids)[0]), expected)


def scored_store(folder, corpus, config, spans):
    made_from = scores_made_from(config, spans, "weights", CPU)
    score_corpus(corpus, folder, config, spans, made_from, CPU, show_progress=False)
    return ScoreStore(folder)


def test_a_corpus_is_scored_once(teacher_model, tmp_path, monkeypatch):
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    spans, config = TokenSpans(teacher_model), TeacherConfig(model=str(teacher_model))
    store = scored_store(tmp_path / "store", corpus, config, spans)
    assert len(store) == len(TEXTS)
    (direct,) = teacher_of(teacher_model).score([TEXTS[2]])
    np.testing.assert_allclose(store.document(2).nll, direct.nll, atol=4e-3)
    np.testing.assert_array_equal(store.document(2).spans, direct.spans)
    monkeypatch.setattr(scoring, "Teacher", lambda *_: pytest.fail("scored again"))
    scored_store(tmp_path / "store", corpus, config, spans)


def test_a_folder_with_scores_of_something_else_is_refused(teacher_model, tmp_path):
    spans, config = TokenSpans(teacher_model), TeacherConfig(model=str(teacher_model))
    corpus = scan(write_corpus(tmp_path / "a.jsonl", TEXTS))
    other = scan(write_corpus(tmp_path / "b.jsonl", TEXTS[1:]))
    scored_store(tmp_path / "store", corpus, config, spans)
    with pytest.raises(StoreError, match="another text"):
        scored_store(tmp_path / "store", other, config, spans)
    shorter = TeacherConfig(model=str(teacher_model), context=600)
    with pytest.raises(StoreError, match="another context"):
        scored_store(tmp_path / "store", corpus, shorter, spans)


def test_a_corpus_that_became_shorter_is_another_text(teacher_model, tmp_path, monkeypatch):
    monkeypatch.setattr("vocagno.corpus.SHARD_BYTES", 200)
    spans, config = TokenSpans(teacher_model), TeacherConfig(model=str(teacher_model))
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    scored_store(tmp_path / "store", corpus, config, spans)
    shorter = scan(write_corpus(tmp_path / "c.jsonl", TEXTS[: corpus.shards[0].documents]))
    assert shorter.shards[0].text_hash == corpus.shards[0].text_hash
    with pytest.raises(StoreError, match="another text"):
        scored_store(tmp_path / "store", shorter, config, spans)


def test_a_killed_run_goes_on_without_a_shard_lost_or_made_twice(
    teacher_model, tmp_path, monkeypatch
):
    monkeypatch.setattr("vocagno.corpus.SHARD_BYTES", 200)
    spans, config = TokenSpans(teacher_model), TeacherConfig(model=str(teacher_model))
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    whole = scored_store(tmp_path / "whole", corpus, config, spans)
    made = []
    original = scoring.write_scores

    def counted(path, *arguments):
        if len(made) == 2:
            made.append(None)
            raise KeyboardInterrupt
        made.append(path.name)
        original(path, *arguments)

    monkeypatch.setattr(scoring, "write_scores", counted)
    with pytest.raises(KeyboardInterrupt):
        scored_store(tmp_path / "killed", corpus, config, spans)
    with pytest.raises(StoreError, match="was not finished"):
        ScoreStore(tmp_path / "killed")
    store = scored_store(tmp_path / "killed", corpus, config, spans)
    made.remove(None)
    assert sorted(made) == sorted(f"{shard.name}.arrow" for shard in corpus.shards)
    for index in range(len(whole)):
        np.testing.assert_array_equal(store.document(index).nll, whole.document(index).nll)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(teacher_model, tokenizers, tmp_path):
    tiny_llama(100).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 100 embeddings"):
        teacher_of(tmp_path, TokenSpans(tokenizers["byte-level"]))


def test_a_bos_that_is_no_token_is_refused(teacher_model):
    with pytest.raises(ConfigError, match=r"teacher\.bos: '<bos>'"):
        teacher_of(teacher_model, bos="<bos>")

"""The teacher's losses: the same as from full logits, whatever the batch and the window."""

import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corpora import write_corpus
from families import TEXTS
from tiny_models import save_llama, tiny_llama

torch = pytest.importorskip("torch")

from vocagno import TokenSpans
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError
from vocagno.models import head, loading
from vocagno.models.batching import boundaries, keeps_apart
from vocagno.models.head import UnsupportedModelError, language_head
from vocagno.models.loading import load_teacher, local_device
from vocagno.teacher import scorer
from vocagno.teacher.candidates import NONE, ScoredWindow, codes_of
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.sampling import most_likely, sample_
from vocagno.teacher.score_store import ScoreStore
from vocagno.teacher.scoring import ScorerError, Teacher, score_corpus
from vocagno.teacher.windows import TextReader, cuts

CPU = torch.device("cpu")


def configured(folder, cache="unused", **options):
    return ConfiguredTeacher(TeacherConfig(model=str(folder), **options), Path(cache), CPU)


def teacher_of(folder, **options):
    teacher = configured(folder, **options)
    teacher.check()
    return teacher.load()


def full_nll(model, prefix, ids):
    """From all logits at once; the first token has none without a prefix."""
    sequence = torch.tensor([[*prefix, *ids]])
    with torch.no_grad():
        logits = model(sequence).logits[0].double().log_softmax(-1)
    losses = [-float(logits[i - 1, sequence[0, i]]) for i in range(1, sequence.shape[1])]
    return np.array(losses if prefix else [np.nan, *losses])


@pytest.mark.parametrize(
    ("bos", "chunk", "device_map"),
    [(None, 50, None), ("<|endoftext|>", 10**6, None), (None, 400, "auto")],
)
def test_scores_are_those_of_the_full_logits(teacher_model, monkeypatch, bos, chunk, device_map):
    """Whatever the chunks of the head; `device_map` spreads the model over one device."""
    monkeypatch.setattr(head, "LEAST_ROWS", 1)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)
    teacher = teacher_of(teacher_model, bos=bos, batch_tokens=64, device_map=device_map)
    texts = [*TEXTS[:5], "", "a", "∑ 😊"]
    spans = TokenSpans(teacher_model)
    for text, document in zip(texts, teacher.score(texts), strict=True):
        tokens = spans.encode([text])
        if not text:
            assert document.nll.shape == (0,)
            continue
        expected = full_nll(
            teacher.scorer.model, teacher.reader.prefix.tolist(), tokens.ids.tolist()
        )
        np.testing.assert_array_equal(document.spans, tokens.spans)
        np.testing.assert_allclose(document.nll, expected, atol=4e-3)


@pytest.mark.parametrize("batching", ["packed", "buckets"])
@pytest.mark.parametrize(("bos", "chunk", "count"), [(None, 50, 3), ("<s>", 10**6, 70)])
def test_candidates_are_those_of_the_full_logits(
    same_vocabulary_model, monkeypatch, bos, chunk, count, batching
):
    """Of a head with ids to spare. The losses are the same bits as without candidates."""
    monkeypatch.setattr(head, "LEAST_ROWS", 1)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)
    options = {"bos": bos, "batch_tokens": 64, "context": 40, "batching": batching}
    teacher = teacher_of(same_vocabulary_model, candidates=count, **options)
    alone = teacher_of(same_vocabulary_model, **options)
    model, spans = teacher.scorer.model, teacher.reader.spans
    model.lm_head.weight.data[spans.vocabulary_size :] *= 100  # ids to spare are likely
    alone.scorer.model.load_state_dict(model.state_dict())
    texts, total = [*TEXTS[:4], "", "a"], 0
    for text, document, other in zip(texts, teacher.score(texts), alone.score(texts), strict=True):
        tokens, candidates = spans.encode([text]).ids.tolist(), document.candidates
        np.testing.assert_array_equal(document.nll, other.nll)
        assert other.candidates is None
        assert candidates.tokens.tolist() == tokens
        assert candidates.ids.shape == candidates.codes.shape == (len(tokens), count)
        prefix = teacher.reader.prefix.tolist()
        if len(prefix) + len(tokens) > 40:  # several windows, which the next lines do not make
            continue
        with torch.no_grad():
            ids = torch.tensor([[*prefix, *tokens]] if tokens else [[0]])
            log_p = model(ids).logits[0].double().log_softmax(-1).numpy()
        for place, row in enumerate(candidates.ids):
            before = len(prefix) + place - 1
            if before < 0:
                assert (row == -1).all()
                assert (candidates.codes[place] == NONE).all()
                continue
            likely = log_p[before, : spans.vocabulary_size]
            assert len(set(row.tolist())) == count
            np.testing.assert_allclose(likely[row], np.sort(likely)[::-1][:count], atol=1e-5)
            near = codes_of(likely[row]).astype(int) - candidates.codes[place]
            assert np.abs(near).max() <= 1
            normalized = likely - np.logaddexp.reduce(likely)  # of the ids of the tokenizer
            entropy = -(np.exp(normalized) * normalized).sum()
            assert abs(int(codes_of(-entropy[None])[0]) - int(candidates.entropy[place])) <= 1
            total += 1
    assert total > 30


def test_a_long_document_has_candidates_of_its_windows(teacher_model):
    options = {"context": 16, "min_context": 5, "batch_tokens": 64}
    with_some, alone = (teacher_of(teacher_model, candidates=k, **options) for k in (4, 0))
    text = " ".join(TEXTS[:3])
    (document,), (other,) = with_some.score([text]), alone.score([text])
    np.testing.assert_array_equal(document.nll, other.nll)
    assert len(document.nll) > 50
    assert ((document.candidates.ids >= 0).all(1) == np.isfinite(document.nll)).all()


def test_each_token_has_its_own_sample(teacher_model, monkeypatch):
    """By hand from all logits of each window, whatever the chunks of the head."""
    monkeypatch.setattr(head, "LEAST_ROWS", 1)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 400)
    teacher = teacher_of(teacher_model, candidates=5, sampled=True, context=16, min_context=5)
    windows = teacher.reader.read([" ".join(TEXTS[:3])]).windows
    for number, scored in teacher.scorer.score(windows):
        ids, first = windows[number].ids, windows[number].asked_from
        with torch.no_grad():
            logits = teacher.scorer.model(torch.from_numpy(ids)[None, :-1]).logits[0].float()
        uniform = torch.from_numpy(scorer._uniform(ids, None))
        top = logits.amax(1, keepdim=True)
        likeliest = most_likely(logits, 5)
        expected = sample_((logits - top).exp(), top, likeliest, uniform)[1].numpy()
        assert (scored.ids == expected[first - 1 :]).mean() > 0.95  # rounding


def test_sampled_candidates_do_not_depend_on_the_batch(teacher_model):
    """The losses are those without candidates."""
    sampling = {"candidates": 8, "sampled": True}
    small_batch, large_batch, alone = (
        teacher_of(teacher_model, batch_tokens=n, **options).score(TEXTS[:4])[3]
        for n, options in ((64, sampling), (1024, sampling), (64, {}))
    )
    np.testing.assert_array_equal(small_batch.nll, alone.nll)
    assert (small_batch.candidates.ids != large_batch.candidates.ids).mean() < 0.01  # rounding
    numbers = [scorer._uniform(np.array([0, n, 5]), None) for n in range(1000)]
    assert np.unique(numbers, axis=0).shape == (1000, 2)  # also where texts begin alike
    np.testing.assert_allclose(np.mean(numbers, 0), 0.5, atol=0.03)


def test_windows_overlap_and_score_each_token_once():
    def cut(*arguments):
        return [(w.start, w.stop, w.score_from) for w in cuts(*arguments)]

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
    prefix = teacher.reader.prefix.tolist()
    for window in cuts(len(ids), 16, 5):
        expected = full_nll(teacher.scorer.model, prefix, ids[window.start : window.stop])
        scored = slice(window.score_from, window.stop)
        np.testing.assert_allclose(
            document.nll[scored], expected[window.score_from - window.start :], atol=4e-3
        )
        assert window.score_from == 0 or window.score_from - window.start >= 5


def test_a_corpus_is_scored_once(teacher_model, tmp_path, monkeypatch):
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    teacher = configured(teacher_model, tmp_path)
    store = teacher.scores(lambda: corpus, None, show_progress=False)
    assert store.folder.parent == tmp_path / "scores"
    assert len(store) == len(TEXTS)
    (direct,) = teacher.load().score([TEXTS[2]])
    np.testing.assert_allclose(store.document(2).nll, direct.nll, atol=4e-3)
    np.testing.assert_array_equal(store.document(2).spans, direct.spans)
    monkeypatch.setattr(ConfiguredTeacher, "load", lambda *_: pytest.fail("scored again"))
    teacher.scores(lambda: corpus, None, show_progress=False)
    with pytest.raises(StoreError, match="finished scores of another context"):
        configured(teacher_model, tmp_path, context=600).make_scores(
            corpus, store.folder, show_progress=False
        )


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tokenizers, tmp_path):
    save_llama(tmp_path, tokenizers["byte-level"], size=100)
    with pytest.raises(ConfigError, match="has 100 embeddings"):
        teacher_of(tmp_path)


def test_an_engine_whose_library_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "vocagno.integrations.scoring_server", raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    config = TeacherConfig(server="http://x", tokenizer="t")
    with pytest.raises(ConfigError, match=r"teacher\.server: .* pip install '\.\[server\]'"):
        ConfiguredTeacher(config, tmp_path, CPU).check()


def test_a_bos_that_is_no_token_is_refused(teacher_model):
    with pytest.raises(ConfigError, match=r"teacher\.bos: '<bos>'"):
        teacher_of(teacher_model, bos="<bos>")


@pytest.mark.parametrize("batching", ["packed", "buckets"])
@pytest.mark.parametrize("bos", [None, "<|endoftext|>"])
def test_documents_read_together_do_not_see_each_other(teacher_model, batching, bos):
    """Read one by one, and all together in one or another shape."""
    texts = [*TEXTS[:6], "", "a", "ab", *TEXTS[:2]]
    options = {"bos": bos, "context": 40, "min_context": 9, "batching": batching}
    together = teacher_of(teacher_model, batch_tokens=4096, **options)
    alone = teacher_of(teacher_model, batch_tokens=1, **{**options, "batching": "buckets"})
    for text, document, single in zip(
        texts, together.score(texts), [alone.score([text])[0] for text in texts], strict=True
    ):
        np.testing.assert_array_equal(document.spans, single.spans, err_msg=text)
        np.testing.assert_allclose(document.nll, single.nll, atol=4e-3, err_msg=text)
    assert together.scorer.is_packed == (batching == "packed")


def test_packing_that_leaks_is_refused(teacher_model):
    with pytest.raises(ConfigError, match=r"teacher\.batching: LlamaForCausalLM with eager "):
        teacher_of(teacher_model, batching="packed", attention="eager")


@pytest.fixture
def flash():
    """Attention under a name like flash attention's, which takes boundaries as that does; what its
    layers are given. It needs no GPU: it makes a mask of the boundaries."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    calls = []

    def attention(module, query, key, value, attention_mask, **options):
        calls.append({"attention_mask": attention_mask, **options})
        if (ends := options.get("cu_seq_lens_q")) is not None and not flash.is_deaf:
            number = torch.bucketize(torch.arange(query.shape[2]), ends, right=True)
            same = number[:, None] == number[None, :]
            attention_mask = same.tril()[None, None]
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    flash = types.SimpleNamespace(name="test_flash_attention", calls=calls, is_deaf=False)
    AttentionInterface.register(flash.name, attention)
    yield flash
    del AttentionInterface._global_mapping[flash.name]


def test_attention_that_takes_boundaries_is_given_them(teacher_model, flash):
    teacher = teacher_of(teacher_model, bos="<|endoftext|>")
    expected = teacher.score(TEXTS[:6])
    teacher.scorer.model.config._attn_implementation = flash.name
    packing = scorer.TransformersScorer(teacher.scorer.model, batch_tokens=4096, width=2048)
    assert packing.is_packed
    teacher.scorer = packing
    flash.calls.clear()
    for packed, alone in zip(teacher.score(TEXTS[:6]), expected, strict=True):
        np.testing.assert_allclose(packed.nll, alone.nll, atol=4e-3)
    assert len(flash.calls) == 2  # one pass through two layers
    for layer in flash.calls:
        assert layer["attention_mask"] is None
        ends, longest = layer["cu_seq_lens_q"], layer["max_length_q"]
        assert (ends.dtype, ends[0], len(ends)) == (torch.int32, 0, 7)
        assert (type(longest), longest) == (int, int(ends.diff().max()))
        assert (torch.equal(layer["cu_seq_lens_k"], ends), layer["max_length_k"]) == (True, longest)
        assert (layer["position_ids"] == 0).sum() == 6


def test_a_model_that_takes_no_boundaries_gets_positions_alone():
    class Deaf(torch.nn.Module):
        def forward(self, input_ids, attention_mask=None, position_ids=None):
            raise AssertionError

    model = types.SimpleNamespace(base_model=Deaf())
    assert boundaries(model, torch.zeros(1, 8, dtype=torch.int64)) == {}


def test_falling_back_to_buckets_is_said(teacher_model, flash, capsys):
    flash.is_deaf = True
    model = teacher_of(teacher_model).scorer.model
    model.config._attn_implementation = flash.name
    capsys.readouterr()
    assert not scorer.TransformersScorer(model, batch_tokens=4096, width=2048).is_packed
    assert "teacher.batching: auto: LlamaForCausalLM with test_flash_attention attention does " in (
        capsys.readouterr().err
    )


class Noisy:
    """A model whose logits are off as those of bfloat16 on a GPU are: by what the shape of a batch
    and the way of its attention decide."""

    def __init__(self, model, noise):
        self.model, self.noise = model, noise
        self.dtype = torch.bfloat16 if noise else torch.float32
        for parameter in model.parameters():
            parameter.data.mul_(8)  # contexts matter, as they do to a trained model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, input_ids, **options):
        output = self.model(input_ids=input_ids, **options)
        seed = input_ids.shape[1] + 100 * ("attention_mask" in options)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(output.logits.shape, generator=generator)
        return types.SimpleNamespace(logits=output.logits + self.noise * drawn)


@torch.no_grad()
def test_noise_of_a_low_precision_is_no_leak():
    """Noise of a tenth of what the boundary is about, which is far over 5 %."""
    ids = torch.arange(16)[None] * 3
    model = Noisy(tiny_llama(50, attn_implementation="sdpa"), 0.0)
    effect = (model(ids).logits[0, 8:] - model(ids[:, 8:]).logits[0]).square().mean().sqrt()
    assert effect > 0.5
    for attention, expected in (("sdpa", True), ("eager", False)):
        for noise in (0.0, 0.1 * effect):
            model = Noisy(tiny_llama(50, attn_implementation=attention), noise)
            assert keeps_apart(model) is expected


def test_losses_leave_before_the_next_pass_begins(teacher_model, monkeypatch):
    teacher = teacher_of(teacher_model, batch_tokens=16)
    events, losses = [], teacher.scorer.losses

    def noted(one_pass):
        events.append("pass")
        return losses(one_pass)

    def start_copy_to_host(values_N):
        events.append("start_copy_to_host")
        return lambda: (events.append("awaited"), values_N.numpy())[1]

    monkeypatch.setattr(teacher.scorer, "_is_asynchronous", True)
    monkeypatch.setattr(teacher.scorer, "losses", noted)
    monkeypatch.setattr(scorer, "start_copy_to_host", start_copy_to_host)
    teacher.score(TEXTS[:3])
    assert events[:5] == ["pass", "start_copy_to_host", "pass", "start_copy_to_host", "awaited"]
    assert events.count("pass") == events.count("awaited") > 2


def test_weights_are_read_straight_onto_a_gpu(teacher_model, monkeypatch):
    from transformers import AutoModelForCausalLM

    asked = []

    def loaded(*_, **options):
        asked.append(options.get("device_map"))
        kinds = "missing_keys", "unexpected_keys", "mismatched_keys"
        return tiny_llama(50), dict.fromkeys(kinds, ())

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loaded)
    gpu = torch.device("cuda", 3)
    load_teacher(TeacherConfig(model=str(teacher_model)), gpu)
    load_teacher(TeacherConfig(model=str(teacher_model), device_map="auto"), gpu)
    load_teacher(TeacherConfig(model=str(teacher_model)), torch.device("cpu"))
    assert asked == [{"": gpu}, "auto", None]


def test_a_launched_process_works_on_its_own_device(monkeypatch):
    current = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_device() == torch.device("cuda", 0)
    assert current == []  # whoever started it by hand may have chosen one
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert local_device() == torch.device("cuda", 2)
    assert current == [2]


class Failing:
    """A scorer that is not transformers', with losses of its own: a protocol, no base class."""

    def __init__(self, *losses, candidates=0):
        self.losses, self.candidates = losses, candidates

    def score(self, windows):
        for number in reversed(range(len(windows))):
            count = len(windows[number].ids) - windows[number].asked_from
            losses = np.resize(np.array(self.losses, np.float32), count)
            ids = np.tile(np.arange(self.candidates, dtype=np.int32), (count, 1))
            yield (
                number,
                ScoredWindow(losses, ids, ids.astype(np.uint8)) if self.candidates else losses,
            )


def test_a_loss_that_is_no_number_is_unscored_and_counted(teacher_model, tmp_path, capsys):
    """NaN, infinite, or beyond what float16 holds: never silently a number. Its token has no
    candidates."""
    spans = TokenSpans(teacher_model)
    scores = Failing(1.0, np.nan, np.inf, -np.inf, 1e5, 2.0, candidates=3)
    reader = TextReader(spans, (), context=64, min_context=8)
    teacher = Teacher(scores, reader, candidates=3)
    texts = ["The sum of 17", "", "a", TEXTS[0]]
    documents = teacher.score(texts)
    for document in documents:
        count = len(document.nll)
        expected = np.resize(np.array([1, *[np.nan] * 4, 2], np.float16), max(0, count - 1))
        np.testing.assert_array_equal(document.nll[1:], expected)
        assert np.isnan(document.nll[:1]).all()  # without a BOS it is not asked for
        assert document.num_unscored == np.isnan(expected).sum()
        ids, codes = document.candidates.ids, document.candidates.codes
        has_loss = np.isfinite(document.nll)[:, None]
        np.testing.assert_array_equal(ids, np.where(has_loss, [[0, 1, 2]], -1))
        np.testing.assert_array_equal(codes, np.where(has_loss, [[0, 1, 2]], NONE))
    corpus, made_from = scan(write_corpus(tmp_path / "c.jsonl", texts)), {"candidates": 3}
    score_corpus(corpus, tmp_path / "store", made_from, lambda: teacher, show_progress=False)
    store = ScoreStore(tmp_path / "store")
    candidates = store.document(0, candidates=True).candidates
    np.testing.assert_array_equal(candidates.ids, documents[0].candidates.ids)
    assert store.manifest.count("unscored_tokens") == sum(d.num_unscored for d in documents) > 8
    assert store.manifest.count("unscored_documents") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda score: score.nll, "Failing: gives losses without candidates"),
        (lambda score: score.nll[:1], r"Failing: gives losses of shape \(1,\) for \d+ tokens"),
        (lambda score: score._replace(ids=score.ids[:, :2]), r"of shape \(\d+, 2\) and"),
        (lambda score: score._replace(codes=score.codes[1:]), r"expected \(\d+, 3\) \(teacher\.c"),
        (lambda score: score._replace(ids=score.ids + 9999), "ids from 9999 to 10001; expected"),
        (lambda score: score._replace(ids=score.ids - 2), "ids from -2 to 0; expected"),
        (lambda score: score._replace(ids=score.ids - 1), "or -1 with code 255"),
        (lambda score: score._replace(codes=score.codes | NONE), "or -1 with code 255"),
        (lambda score: score._replace(codes=score.codes * 1.0), "codes of type float64, expected"),
        (lambda score: score._replace(entropy=score.nll), "codes of type float32, expected uint8"),
    ],
)
def test_a_scorer_of_impossible_candidates_is_refused(teacher_model, change, words):
    failing = Failing(1.0, candidates=3)
    score = failing.score
    reader = TextReader(TokenSpans(teacher_model), (), context=64, min_context=8)
    teacher = Teacher(failing, reader, candidates=3)
    assert teacher.score(TEXTS[:1])
    failing.score = lambda windows: ((n, change(scored)) for n, scored in score(windows))
    with pytest.raises(ScorerError, match=words):
        teacher.score(TEXTS[:1])


def test_a_store_of_other_candidates_is_refused(teacher_model, tmp_path):
    """What `teacher.scores` names is used as it is, if the options do not ask for another one."""
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    made = configured(teacher_model, tmp_path, candidates=3)
    store = made.scores(lambda: corpus, None, show_progress=False)
    assert store.candidates == 3
    (direct,) = made.load().score([TEXTS[2]])
    candidates = store.document(2, candidates=True).candidates
    np.testing.assert_array_equal(candidates.ids, direct.candidates.ids)
    without = configured(teacher_model, tmp_path)
    drawn = configured(teacher_model, tmp_path, candidates=3, sampled=True)
    assert len({teacher.scores_folder(corpus) for teacher in (without, drawn, made)}) == 3
    with pytest.raises(StoreError, match=r"another sampling of candidates \(False, now True\)"):
        drawn.scores(None, store.folder, show_progress=False)
    assert without.scores(None, store.folder, show_progress=False).candidates == 3
    folder = drawn.make_scores(corpus, show_progress=False)[0]
    assert made.scores(None, folder, show_progress=False).candidates == 3
    plain = configured(teacher_model, tmp_path, candidates=3, sampled=False)
    with pytest.raises(StoreError, match=r"another sampling of candidates \(True, now False\)"):
        plain.scores(None, folder, show_progress=False)
    for count, stored, folder in (
        (5, 3, store.folder),
        (5, 0, without.make_scores(corpus, show_progress=False)[0]),
    ):
        words = rf"made with another number of candidates \({stored}, now {count}\); to use these"
        other = configured(teacher_model, tmp_path, candidates=count)
        with pytest.raises(StoreError, match=words):
            other.scores(None, folder, show_progress=False)
    with pytest.raises(StoreError, match=r"finished scores of another candidates \(3, now 5\)"):
        other.make_scores(corpus, store.folder, show_progress=False)
    for made_from, words in (({}, "tokenizer"), ({"tokenizer": made.spans.fingerprint}, "teacher")):
        replace(store.manifest, made_from=made_from).save(store.folder)  # another tool wrote it
        with pytest.raises(StoreError, match=rf"made with another {words} \(none, now "):
            without.scores(None, store.folder, show_progress=False)


def test_a_head_that_is_offloaded_is_refused(teacher_model):
    model = tiny_llama(50)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to("meta"), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match=r"teacher\.device_map more memory"):
        language_head(model)


def test_two_files_of_one_hub_repository_are_two_teachers(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"

    def cached(name, file):
        return f"/cache/models--x--y/snapshots/{commit}/{file}"

    monkeypatch.setattr("transformers.utils.cached_file", cached)
    names = [
        loading.weights_identity(TeacherConfig(model="x/y", gguf_file=file), tmp_path)
        for file in (None, "q4.gguf", "q8.gguf")
    ]
    assert names == [f"x/y@{commit}", f"x/y@{commit}/q4.gguf", f"x/y@{commit}/q8.gguf"]


def test_a_context_without_room_is_refused(teacher_model):
    teacher = configured(teacher_model, context=40, min_context=39)
    teacher.spans.prefix_ids = (1, 2)
    words = r"min_context 39 and 2 prefix tokens leave no room in teacher\.context 40"
    with pytest.raises(ConfigError, match=words):
        teacher.check()


class Forgetful:
    """A scorer that loses `late` times as much on the last quarter of a context of 64."""

    def __init__(self, late):
        self.late = late

    def score(self, windows):
        for number, window in enumerate(windows):
            places = np.arange(window.asked_from, len(window.ids))
            yield number, np.where(places < 48, 1, self.late).astype(np.float32)


@pytest.mark.parametrize(("late", "is_named"), [(1.04, False), (1.06, True)])
def test_a_context_longer_than_the_teacher_has_learnt_is_named(
    teacher_model, capsys, monkeypatch, late, is_named
):
    monkeypatch.setattr("vocagno.teacher.scoring._MIN_QUARTER_TOKENS", 32)
    reader = TextReader(TokenSpans(teacher_model), (), context=64, min_context=16)
    teacher = Teacher(Forgetful(late), reader)
    for _ in range(2):
        teacher.score([" ".join(TEXTS)])
    assert capsys.readouterr().err.count("Try teacher.context: 32") == is_named

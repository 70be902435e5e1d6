"""Columns of a data set: the losses, labels and groups of our own rows, for any trainer."""

import json
import pickle
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

import vocagno
from corpora import write_corpus
from families import HARD_TEXTS, TEXTS, without_unknown_token
from vocagno.cli.app import main
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus_files import CorpusError
from vocagno.data.rows import document_rows, join_documents
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError, GuidanceError, InputError
from vocagno.guidance import GuidanceTensors, selective_cross_entropy
from vocagno.guidance.batch import BatchFacts, TokenCounts, check_columns
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import Collator
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.integrations.collators import DataCollatorWithTeacherLoss
from vocagno.integrations.columns import TeacherLossColumns, TeacherTexts, add_teacher_loss
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import ScoreStore
from vocagno.teacher.scoring import Teacher
from vocagno.teacher.windows import TextReader
from vocagno.tokens.token_spans import TokenSpans

DOCUMENTS = [*TEXTS, *HARD_TEXTS, "x", ""]
RULES = {
    "default": GuidanceConfig(),
    "paper": GuidanceConfig(top_fraction=0.4),
    "mean": GuidanceConfig(top_fraction=0.4, unmapped="mean"),
    "groups": GuidanceConfig(unit="group", max_threshold=0.0),
    "lines of tokens": GuidanceConfig(unit="token"),
    "chunks": GuidanceConfig(method="chunk", top_fraction=0.4),
    "alm": GuidanceConfig(method="alm"),
    "distill": GuidanceConfig(method="distill", window_max_loss=9.0),
    "everywhere": GuidanceConfig(method="distill", distill_where="all"),
}
CANDIDATES = 8
STUDENT = (
    "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
TEACHER = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}<end> {% endfor %}"
CHAT = [
    [
        {"role": "user", "content": "Was ist 12 + 7? Yes."},
        {"role": "assistant", "content": "Yes. 12 + 7 = 19"},
        {"role": "user", "content": "Déjà vu?"},
        {"role": "assistant", "content": "  Yes, naïvely: x² ≥ 3.14 👩‍🔬\n"},
    ],
    [{"role": "system", "content": "Short."}, {"role": "user", "content": "19"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "日本語"}],
]


def wrapped(tokenizer, **options):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


@pytest.fixture(scope="module")
def student(tokenizers):
    return wrapped(tokenizers["llama"], eos_token="</s>", chat_template=STUDENT)


@pytest.fixture(scope="module")
def teacher_tokenizer(tokenizers):
    return wrapped(tokenizers["byte-level"], chat_template=TEACHER)


@pytest.fixture(scope="module")
def teacher(teacher_model):
    config = TeacherConfig(model=str(teacher_model), context=256, candidates=CANDIDATES)
    return ConfiguredTeacher(config, teacher_model, torch.device("cpu")).load()


@pytest.fixture(scope="module")
def store(tmp_path_factory, teacher_model, teacher_tokenizer):
    """The scores of `DOCUMENTS`, in another order, and of conversations."""
    folder = tmp_path_factory.mktemp("columns")
    chats = TeacherTexts(teacher_tokenizer)({"messages": CHAT})["text"]
    corpus = write_corpus(folder / "c.jsonl", [*DOCUMENTS[::-1], *chats])
    words = ["--teacher.model", str(teacher_model), "--teacher.context", "256"]
    words += ["--candidates", str(CANDIDATES)]
    scores = folder / "scores"
    assert main(["score", str(corpus), *words, "--out", str(scores)]) == 0
    return ScoreStore(scores)


@pytest.fixture(scope="module")
def over_buckets(student, teacher_model):
    """`targets` of a guidance, as an option."""
    of = vocagno.buckets(TokenSpans(student), TokenSpans(teacher_model))
    targets = BucketTargets(of, CANDIDATES)
    return lambda guidance: {"targets": targets} if guidance.needs_candidates else {}


def own_batch(documents, student, teacher, guidance, prompt_bytes=None, **targets):
    """The batch of our own collator, each document a row."""
    spans = TokenSpans(student)
    tokens = spans.encode(documents)
    around = spans.prefix_ids, student.eos_token_id
    rows = document_rows(join_documents(tokens, 0, *around, prompt_bytes))
    width = max(len(row.ids) for row in rows)
    data = DataConfig(train="", seq_len=width - 1)
    scores = ScoresInOrder(teacher.score(documents))
    return Collator(scores, guidance, data, spans.line_ends(), **targets)(rows)


def examples_of(columns):
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, values, strict=True)) for values in rows]


def canonical(numbers):
    """Numbers of groups as places: equal for equal groups."""
    places = {}
    flat = numbers.flatten().tolist()
    return [-1 if number < 0 else places.setdefault(number, len(places)) for number in flat]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("source", ["teacher", "store"])
def test_a_padded_batch_is_that_of_our_own_collator(
    request, student, teacher, over_buckets, rule, source
):
    guidance = RULES[rule]
    teacher_or_store, targets = request.getfixturevalue(source), over_buckets(guidance)
    made = TeacherLossColumns(student, teacher_or_store, guidance, **targets)({"text": DOCUMENTS})
    examples = examples_of(made)
    batch = DataCollatorWithTeacherLoss(guidance, **targets)(examples)
    expected = own_batch(DOCUMENTS, student, teacher, guidance, **targets)
    inputs = expected.inputs()
    assert batch.keys() == inputs.keys() | {"num_kept", "facts", "shift_labels"}
    for name, value in inputs.items():
        if name == "groups":
            assert canonical(batch[name]) == canonical(value)
            assert int(batch[name].max()) < value.shape[0] * (value.shape[1] + 1)
        else:
            np.testing.assert_array_equal(batch[name], value, err_msg=name)
    counts = expected.counts
    assert batch["num_kept"] == counts.kept
    assert batch["facts"] == BatchFacts(guidance, counts, TokenSpans(student).fingerprint)
    for example, text in zip(examples, DOCUMENTS, strict=True):
        assert example["labels"][0] == -100
        assert np.isnan(example["teacher_loss"][0])
        assert len(example["input_ids"]) == len(example["labels"]) == len(example["teacher_loss"])
        assert text or not np.isfinite(example["teacher_loss"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["default", "groups", "lines of tokens", "alm", "distill"])
def test_rows_may_be_longer_than_a_chunk_of_logits(
    monkeypatch, student, teacher, over_buckets, rule
):
    """A chunk then holds the end of one row and the start of the next one."""
    guidance = RULES[rule]
    targets = over_buckets(guidance)
    made = TeacherLossColumns(student, teacher, guidance, **targets)({"text": DOCUMENTS})
    batch = DataCollatorWithTeacherLoss(guidance, **targets)(examples_of(made))
    size = TokenSpans(student).vocabulary_size
    hidden, weight = torch.randn(*batch["labels"].shape, 8), torch.randn(size, 8)
    table = targets["targets"].table if targets else None
    teacher = GuidanceTensors.of(batch, buckets=table)
    arguments = weight, batch["labels"], teacher, guidance
    with torch.no_grad():
        whole, expected = selective_cross_entropy(hidden, *arguments)
    monkeypatch.setattr("vocagno.models.head.chunk_rows", lambda *_: 7)
    loss, of_rows = selective_cross_entropy(hidden, *arguments)
    torch.testing.assert_close(loss, whole)
    assert torch.equal(of_rows.weights_BT, expected.weights_BT)
    assert 0.1 < of_rows.weights_BT.sum() / (batch["labels"] >= 0).sum() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("num_proc", [None, 2])
@pytest.mark.parametrize("source", ["teacher", "store"])
def test_map_gives_the_columns_in_any_number_of_processes(request, student, source, num_proc):
    teacher_or_store = request.getfixturevalue(source)
    data = datasets.Dataset.from_dict({"text": DOCUMENTS, "more": list(range(len(DOCUMENTS)))})
    made = add_teacher_loss(data, student, teacher_or_store, num_proc=num_proc, batch_size=5)
    whole = TeacherLossColumns(student, teacher_or_store)({"text": DOCUMENTS})
    assert set(made.column_names) == whole.keys()
    assert made.features["teacher_loss"].feature.dtype == "float32"
    assert made.features["input_ids"].feature.dtype == "int32"
    for index, example in enumerate(made.with_format("numpy")):
        for name, values in whole.items():
            if name == "made_for":
                assert example[name] == values[index]
                continue
            rtol = 0 if source == "store" else 1e-3  # float16, of batches of other sizes
            np.testing.assert_allclose(example[name], values[index], rtol, atol=rtol)


def test_prompts_are_not_learnt(student, teacher):
    prompts = [text[: len(text) // 2] for text in TEXTS]
    completions = [text[len(text) // 2 :] for text in TEXTS]
    made = TeacherLossColumns(student, teacher)({"prompt": prompts, "completion": completions})
    sizes = [len(prompt.encode()) for prompt in prompts]
    expected = own_batch(TEXTS, student, teacher, GuidanceConfig(), sizes).labels
    for labels, row in zip(made["labels"], expected, strict=True):
        np.testing.assert_array_equal(labels[1:], row[: len(labels) - 1])
        assert (labels[:2] == -100).all()
        assert labels[-1] == student.eos_token_id


def test_only_what_the_assistant_has_written_is_learnt(student, teacher, teacher_tokenizer):
    """Sees an answer that is found at the place of another message with the same words, and text of
    a template that is compared with the teacher."""
    columns = TeacherLossColumns(
        student, teacher, RULES["paper"], teacher_tokenizer=teacher_tokenizer
    )
    made = columns({"messages": CHAT})
    spans = TokenSpans(student)
    for messages, ids, labels, losses in zip(
        CHAT, made["input_ids"], made["labels"], made["teacher_loss"], strict=True
    ):
        masked = student.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids.tolist() == masked["input_ids"]
        learnt = np.array(masked["assistant_masks"], bool)
        np.testing.assert_array_equal(labels, np.where(learnt, ids, -100))
        text = student.apply_chat_template(messages, tokenize=False)
        token_spans = spans.encode([text]).spans
        answers = np.zeros(len(text.encode()) + 1, bool)
        at = 0
        for message in messages:
            answer = message["content"].strip()
            at = text.index(answer, text.index(f"<{message['role']}>", at))
            if message["role"] == "assistant":
                first = len(text[:at].encode())
                answers[first : first + len(answer.encode())] = True
        in_answer = np.array([answers[start:end].any() for start, end in token_spans])
        assert not np.isfinite(losses[~in_answer]).any()
        assert np.isfinite(losses[in_answer]).mean() > 0.8 if in_answer.any() else True


def test_an_answer_has_the_losses_of_the_teachers_own_template(student, teacher, teacher_tokenizer):
    """Computed by hand from the teacher's losses of its own text."""
    texts = TeacherTexts(teacher_tokenizer)({"messages": CHAT})["text"]
    assert texts[2] == "[user] Hi<end> [assistant] 日本語<end> "
    scores = teacher.score([texts[2]])[0]
    first = len(b"[user] Hi<end> [assistant] ")
    inside = (scores.spans[:, 0] >= first) & (scores.spans[:, 1] <= first + 9)
    total = float(scores.nll[inside].astype(np.float32).max())
    columns = TeacherLossColumns(
        student, teacher, RULES["paper"], teacher_tokenizer=teacher_tokenizer
    )
    losses = columns({"messages": CHAT[2:]})["teacher_loss"][0]
    assert np.nanmax(losses) == pytest.approx(total)


JOINED = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }},\n{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)
"""Some tokens of this text cover an end of an answer and what the template writes next to it."""


def test_a_group_with_text_around_an_answer_has_no_loss(tokenizers, teacher, teacher_tokenizer):
    student = wrapped(tokenizers["llama"], eos_token="</s>", chat_template=JOINED)
    chat = [
        {"role": role, "content": content}
        for answer in ("Let x = 42", "exactly x = 42", "has x = 42")
        for role, content in (("user", "Hi"), ("assistant", answer))
    ]
    made = TeacherLossColumns(
        student, teacher, RULES["groups"], teacher_tokenizer=teacher_tokenizer
    )({"messages": [chat]})
    (ids,), (groups,), (losses,) = (made[name] for name in ("input_ids", "groups", "teacher_loss"))
    ends = student.convert_tokens_to_ids(["▁Let", "▁exactly", "▁has", "▁42,"])
    at_ends = np.flatnonzero(np.isin(ids, ends))
    assert len(at_ends) == 6
    assert (groups[at_ends] < 0).all()
    assert np.isnan(losses[at_ends]).all()
    assert (np.diff(at_ends)[::2] == 3).all()
    inside = np.add.outer(at_ends[::2], [1, 2]).ravel()
    assert groups[inside].tolist() == list(range(6))
    assert np.isfinite(losses[inside]).all()


def starting(spans):
    """The token that starts at each byte; spans are proved."""
    return {start: index for index, (start, end) in enumerate(spans.tolist()) if start < end}


def test_an_answer_has_the_candidates_of_the_teachers_own_template(
    student, teacher, teacher_tokenizer, over_buckets
):
    """Found again in both texts, token by token; nothing else has any."""
    guidance = GuidanceConfig(method="distill")
    options = {"teacher_tokenizer": teacher_tokenizer}
    targets = over_buckets(guidance)["targets"]
    columns = TeacherLossColumns(student, teacher, guidance, **options, targets=targets)
    made, of = columns({"messages": CHAT}), targets.buckets[0]
    texts = TeacherTexts(teacher_tokenizer)({"messages": CHAT})["text"]
    compared = 0
    for number, (messages, scores) in enumerate(zip(CHAT, teacher.score(texts), strict=True)):
        text = student.apply_chat_template(messages, tokenize=False)
        tokens, teacher_starts = TokenSpans(student).encode([text]), starting(scores.spans)
        student_starts, at, teacher_at = starting(tokens.spans), 0, 0
        candidates, rows = scores.candidates, np.full((len(tokens.ids), 3), -1)
        for message in messages:
            content = message["content"].strip()
            at, teacher_at = text.index(content, at), texts[number].index(content, teacher_at)
            first, other = len(text[:at].encode()), len(texts[number][:teacher_at].encode())
            size = len(content.encode())
            at, teacher_at = at + len(content), teacher_at + len(content)
            for byte in range(size) if message["role"] == "assistant" else ():
                row, token = teacher_starts.get(other + byte), student_starts.get(first + byte)
                if row is None or token is None or scores.spans[row, 1] > other + size:
                    continue
                if of.student[tokens.ids[token]] == of.teacher[candidates.tokens[row]]:
                    rows[token] = row, candidates.tokens[row], tokens.ids[token - 1]
        columns = rows, candidates.ids, candidates.probabilities, candidates.nats_of_entropy
        expected = targets.at(*map(torch.from_numpy, columns))
        bucket_nS, mass_nS, entropy_nR = (
            np.array(made[name][number]) for name in CANDIDATE_COLUMNS
        )
        assert (bucket_nS.dtype, mass_nS.dtype) == (np.int32, np.float32)
        np.testing.assert_array_equal(bucket_nS, expected.bucket_nS)
        np.testing.assert_allclose(mass_nS, expected.mass_nS, rtol=1e-5)
        np.testing.assert_array_equal(entropy_nR, expected.entropy_nR)
        compared += (bucket_nS >= 0).any(1).sum()
    assert compared > 15


CANDIDATE_COLUMNS = ("candidates", "candidate_mass", "candidate_entropy")


def test_buckets_of_columns_are_those_of_the_loss(
    student, teacher, store, tokenizers, over_buckets, tmp_path
):
    """A saved data set gives the batch again; other buckets, and none, are refused."""
    guidance = RULES["distill"]
    targets = over_buckets(guidance)
    data = datasets.Dataset.from_dict({"text": TEXTS[:6]})
    made = add_teacher_loss(data, student, store, guidance, **targets)
    made.save_to_disk(str(tmp_path / "saved"))
    again = datasets.load_from_disk(str(tmp_path / "saved"))
    kinds = {name: again.features[name].feature.feature.dtype for name in CANDIDATE_COLUMNS}
    numbers = {"candidate_mass": "float32", "candidate_entropy": "float32"}
    assert kinds == {"candidates": "int32", **numbers}
    collate = DataCollatorWithTeacherLoss(guidance, **targets)
    everywhere = TeacherLossColumns(student, store, RULES["everywhere"], **targets)(data[:])
    assert "candidate_entropy" not in everywhere  # so that `surer` refuses them
    whole = TeacherLossColumns(student, store, guidance, **targets)(data[:])
    expected = collate(examples_of(whole))
    for name, value in collate(list(again)).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    padded = DataCollatorWithTeacherLoss(guidance, pad_to_multiple_of=16, **targets)(list(again))
    width = expected["labels"].shape[1]
    assert padded["candidates"].shape == (6, -(-width // 16) * 16, CANDIDATES)
    assert torch.equal(padded["candidates"][:, :width], expected["candidates"])
    assert (padded["candidates"][:, width:] == -1).all()

    def refused(words, call, *arguments, **options):
        with pytest.raises(ConfigError, match=words):
            call(*arguments, **options)

    spans, of = TokenSpans(student), targets["targets"].buckets[0]
    half = BucketTargets(of, CANDIDATES // 2)
    refused(
        "^columns of other buckets than `targets`",
        DataCollatorWithTeacherLoss(guidance, targets=half),
        list(again),
    )
    refused("^targets: guidance.method: distill needs B", DataCollatorWithTeacherLoss, guidance)
    refused("distill needs B", TeacherLossColumns, student, teacher, guidance)
    refused("vocagno needs none", DataCollatorWithTeacherLoss, **targets)
    refused("vocagno needs none", TeacherLossColumns, student, teacher, **targets)
    third = TokenSpans(tokenizers["metaspace-first"])
    for side, pair in (("student", (third, teacher.reader.spans)), ("teacher", (spans, third))):
        other = BucketTargets(vocagno.buckets(*pair), CANDIDATES)
        for teacher_or_store in (teacher, store):
            words = f"^targets: their buckets are of another {side} tokenizer; make buckets of"
            refused(words, TeacherLossColumns, student, teacher_or_store, guidance, targets=other)
    few = TeacherLossColumns(student, teacher, guidance, targets=half)
    with pytest.raises(GuidanceError, match="needs scores with 4 candidates of each token: give"):
        few(data[:])


def test_scores_of_conversations_are_found(student, teacher, store, teacher_tokenizer):
    options = {"teacher_tokenizer": teacher_tokenizer}
    stored = TeacherLossColumns(student, store, **options)
    live = TeacherLossColumns(student, teacher, **options)
    again = pickle.loads(pickle.dumps(stored))
    for columns in (stored, again):
        for losses, expected in zip(
            columns({"messages": CHAT})["teacher_loss"],
            live({"messages": CHAT})["teacher_loss"],
            strict=True,
        ):
            np.testing.assert_allclose(losses, expected, rtol=1e-2)


def test_a_teacher_without_a_template_reads_the_contents(student, teacher):
    assert TeacherTexts()({"messages": CHAT[2:]}) == {"text": ["Hi\n\n日本語"]}
    losses = TeacherLossColumns(student, teacher)({"messages": CHAT[2:]})["teacher_loss"][0]
    assert np.isfinite(losses).any()


def test_the_bos_of_a_template_is_not_read_twice(tokenizers):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    backend = Tokenizer.from_str(tokenizers["llama"].to_str())
    bos = ("<s>", backend.token_to_id("<s>"))
    for adds_bos in (False, True):
        single = "<s> $A" if adds_bos else "$A"
        backend.post_processor = TemplateProcessing(single=single, special_tokens=[bos])
        tokenizer = wrapped(backend, bos_token="<s>", chat_template="<s>" + TEACHER)
        text = TeacherTexts(tokenizer)({"messages": CHAT[2:]})["text"][0]
        assert text.startswith("[user]" if adds_bos else "<s>[user]")


@pytest.mark.parametrize("length", [2, 7, 12])
def test_examples_are_truncated(student, teacher, teacher_tokenizer, length):
    for examples in ({"text": DOCUMENTS}, {"messages": CHAT}):
        options = {"teacher_tokenizer": teacher_tokenizer}
        whole = TeacherLossColumns(student, teacher, RULES["paper"], **options)(examples)
        columns = TeacherLossColumns(student, teacher, RULES["paper"], max_length=length, **options)
        sizes = np.array([len(ids) for ids in whole["input_ids"]])
        lost = np.maximum(sizes - length, 0).sum() / sizes.sum()
        words = f"max_length: {length} tokens are kept of an example, so {lost:.1%} of the tokens"
        with pytest.warns(UserWarning, match=words):
            cut = columns(examples)
        # `datasets` keeps the result under a hash of the pickle.
        assert vars(pickle.loads(pickle.dumps(columns))).keys() == vars(columns).keys() - {
            "_has_warned"
        }
        for name in ("input_ids", "labels", "teacher_loss"):
            for some, untruncated in zip(cut[name], whole[name], strict=True):
                np.testing.assert_array_equal(some, untruncated[:length])


def test_columns_warn_of_a_limit_that_drops_short_lines(student, teacher):
    with pytest.warns(UserWarning, match="0.5 is below 1 nat a byte, so it drops short lines"):
        TeacherLossColumns(student, teacher, GuidanceConfig(window_max_loss=0.5))


def test_unusable_examples_are_refused(student, teacher, store, teacher_tokenizer, tokenizers):
    """Each case would otherwise train on other tokens than are meant, or fail after hours of
    scoring."""

    def refused(words, error, examples, *arguments, **options):
        with pytest.raises(error, match=words):
            TeacherLossColumns(*arguments, **options)(examples)

    text = {"text": [*TEXTS[:2], "not scored"]}
    refused("has no scores of 1 of 3 examples; .* 'not scored'", InputError, text, student, store)
    losses = TeacherLossColumns(student, store, allow_missing=True)(text)["teacher_loss"][2]
    assert np.isnan(losses).all()
    chat = {"messages": CHAT}
    no_marks = wrapped(tokenizers["llama"], eos_token="</s>", chat_template=TEACHER)
    refused(r"does not mark what the assistant writes", InputError, chat, no_marks, teacher)
    none = wrapped(tokenizers["llama"], eos_token="</s>")
    refused("has no chat template", InputError, chat, none, teacher)
    refused("no eos_token", InputError, text, wrapped(tokenizers["llama"]), teacher)
    for length in (0, -5):
        words = f"max_length: expected at least 1 token, got {length}"
        refused(words, InputError, text, student, teacher, max_length=length)
    image = {"messages": [[{"role": "user", "content": [{"type": "image"}]}]]}
    refused("example 0 of its batch: message 0: expected", CorpusError, image, student, teacher)
    refused("got other", CorpusError, {"other": ["a"]}, student, teacher)
    messages = {"prompt": [CHAT[0][:1]], "completion": [CHAT[0][1:2]]}
    refused("`prompt` must be a string", CorpusError, messages, student, teacher)
    changing = wrapped(
        tokenizers["byte-level"],
        chat_template="{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    )
    refused(
        "changes answer|is not in what",
        CorpusError,
        chat,
        student,
        teacher,
        teacher_tokenizer=changing,
    )
    with pytest.raises(ValueError, match="without made_for, teacher_loss, token_counts, weight"):
        DataCollatorWithTeacherLoss()([{"input_ids": [1, 2], "labels": [1, 2]}])


def test_columns_of_an_earlier_version_are_refused_with_what_they_lack():
    made = {"method": "vocagno", "unit": "token", "aggregation": "max", "student": "s"}
    with pytest.raises(ConfigError, match=r"made for guidance.chunks None, not 32"):
        check_columns(json.dumps(made), RULES["paper"])


@pytest.mark.parametrize(
    ("made", "used", "message"),
    [
        ("default", "paper", "made for guidance.unit group, not token"),
        ("paper", "groups", "without groups: make"),
        ("paper", "mean", "without teacher_sums: make"),
        ("paper", "chunks", "made for guidance.method vocagno, not chunk; make"),
        (
            "chunks",
            GuidanceConfig(method="chunk", top_fraction=0.4, chunks=8),
            "made for guidance.chunks 32, not 8; make",
        ),
        ("paper", GuidanceConfig(top_fraction=0.4, aggregation="sum"), "aggregation max, not sum;"),
        ("paper", GuidanceConfig(top_fraction=0.4, window_max_loss=1.0), "without weight: make"),
        ("default", GuidanceConfig(unit="group", window_max_loss=1.0), "max_loss 2.0, not 1"),
        ("default", GuidanceConfig(unmapped="exclude"), "unmapped include, not exclude; make"),
        ("mean", GuidanceConfig(top_fraction=0.6, normalize="selected"), None),
        ("default", GuidanceConfig(method="cpt"), None),
    ],
    ids=str,
)
def test_columns_of_other_guidance_are_refused(student, teacher, made, used, message):
    examples = examples_of(TeacherLossColumns(student, teacher, RULES[made])({"text": TEXTS[:3]}))
    collate = DataCollatorWithTeacherLoss(RULES.get(used, used))
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        collate(examples)


def test_what_templates_write_is_not_counted_as_text(student, teacher, teacher_tokenizer):
    """A data set of conversations is covered as one of texts is, unless its answers are so short
    that no token of the teacher is in them."""
    options = {"teacher_tokenizer": teacher_tokenizer}
    data = datasets.Dataset.from_dict({"messages": CHAT})
    made = add_teacher_loss(data, student, teacher, RULES["paper"], **options)
    total = TokenCounts(*np.array(made["token_counts"]).sum(0).tolist())
    assert total.shares == {"coverage": 1, "scored": 1}
    assert 20 < total.with_text < total.predicted
    short = [[{"role": "user", "content": "12 + 7?"}, {"role": "assistant", "content": "1"}]] * 2
    data = datasets.Dataset.from_dict({"messages": short})
    with pytest.raises(GuidanceError, match=r"^dataset: only 0.00% of the tokens have a teacher l"):
        add_teacher_loss(data, student, teacher, RULES["paper"], **options)


def test_scores_of_another_corpus_stop_where_missing_ones_are_allowed(student, store):
    def share(num_scored, **options):
        texts = [*TEXTS[:num_scored], *(f"{text}!" for text in TEXTS[num_scored:])]
        data = datasets.Dataset.from_dict({"text": texts})
        return add_teacher_loss(
            data, student, store, GuidanceConfig(**options), allow_missing=True, batch_size=5
        )

    for count in (0, len(TEXTS) // 2):
        with pytest.raises(
            GuidanceError, match=r"dataset: only \d+.\d+% of the tokens to learn are"
        ):
            share(count)
    assert len(share(len(TEXTS) // 2, min_coverage=0.1)) == len(TEXTS)
    assert len(share(0, method="cpt")) == len(TEXTS)


def test_answers_are_found_where_the_template_puts_them(tokenizers):
    """Also where a user has said the same before, and white space was removed."""
    from vocagno.integrations.conversations import conversation

    for template in (STUDENT, TEACHER, None):
        tokenizer = template and wrapped(tokenizers["llama"], chat_template=template)
        for messages in CHAT:
            chat = conversation(messages, tokenizer)
            raw = chat.text.encode()
            answers = [raw[start:end].decode() for start, end in chat.answers]
            expected = [m["content"].strip() for m in messages if m["role"] == "assistant"]
            assert answers == expected


@pytest.mark.parametrize("tools", [[{"name": "add"}], '[{"name": "add"}]'])
def test_the_options_of_a_template_reach_both_sides(tokenizers, teacher, tools):
    """By TRL's columns: tools, as a list or as JSON, and further arguments."""
    before = "{{ tools[0].name }} {{ style }} "
    student = wrapped(tokenizers["llama"], eos_token="</s>", chat_template=before + STUDENT)
    other = wrapped(tokenizers["byte-level"], chat_template=before + TEACHER)
    examples = {"messages": CHAT[:1], "tools": [tools], "chat_template_kwargs": [{"style": "dry"}]}
    columns = TeacherLossColumns(student, teacher, RULES["default"], teacher_tokenizer=other)
    (ids,) = columns(examples)["input_ids"]
    assert student.decode(ids).strip().startswith("add dry <user>")
    (text,) = TeacherTexts(other)(examples)["text"]
    assert text.startswith("add dry [user]")
    with pytest.raises(CorpusError, match="example 0 of its batch: `tools` is no JSON"):
        columns(examples | {"tools": ["calculator, search"]})


def test_data_that_says_two_things_is_refused(student, teacher, teacher_tokenizer):
    columns = TeacherLossColumns(student, teacher)
    with pytest.raises(CorpusError, match="have `text` and `prompt`, which may say different"):
        columns({"text": ["a"], "prompt": ["b"], "completion": ["c"]})
    data = datasets.Dataset.from_dict({"text": TEXTS})
    for dataset in (datasets.DatasetDict(train=data), data.to_iterable_dataset()):
        with pytest.raises(InputError, match=r"dataset: expected a datasets.Dataset, got"):
            add_teacher_loss(dataset, student, teacher)
    with pytest.warns(UserWarning, match="is it the teacher's tokenizer"):
        TeacherLossColumns(student, teacher, teacher_tokenizer=student)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TeacherLossColumns(student, teacher, teacher_tokenizer=teacher_tokenizer)


@pytest.mark.parametrize("kind", ["text", "messages"])
def test_examples_that_cannot_be_read_are_omitted_or_have_no_losses(teacher, kind, capsys):
    """Those of the student are omitted; those of the teacher count as missing."""
    unigram = without_unknown_token("☃")
    unigram.add_special_tokens(["<user>", "<assistant>"])
    student = wrapped(unigram, eos_token="</s>", chat_template=STUDENT)
    texts = ["the first", "a ☃", *["one more, and a longer one"] * 40, "a ♞", "the last"]
    examples = texts
    if kind == "messages":
        examples = [
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
            for text in texts
        ]
    dataset = datasets.Dataset.from_dict({kind: examples})
    reader = TextReader(TokenSpans(without_unknown_token("♞")), (), context=64, min_context=16)
    knightless = Teacher(teacher.scorer, reader)
    guidance = GuidanceConfig(min_coverage=0.5)
    made = add_teacher_loss(dataset, student, knightless, guidance)
    assert len(made) == len(texts) - 1
    assert "omitted the example that begins" in capsys.readouterr().err
    has_loss = [np.isfinite(example["teacher_loss"]).any() for example in made]
    assert [number for number, has in enumerate(has_loss) if not has] == [len(texts) - 3]
    missing = [example["token_counts"][TokenCounts._fields.index("missing")] for example in made]
    assert [number for number, count in enumerate(missing) if count] == [len(texts) - 3]
    with pytest.raises(StoreError, match=r"of 1 of 44 documents .* max_refused allows none"):
        add_teacher_loss(dataset, student, knightless, guidance, max_refused=0)


def test_a_batch_of_examples_that_cannot_be_read_has_no_rows(teacher):
    student = wrapped(without_unknown_token("☃"), eos_token="</s>")
    dataset = datasets.Dataset.from_dict({"text": ["a ☃", "☃", "the first", "the last"]})
    guidance = GuidanceConfig(min_coverage=0.5)
    assert len(add_teacher_loss(dataset, student, teacher, guidance, batch_size=2)) == 2
    assert len(add_teacher_loss(dataset.take(2), student, teacher, guidance)) == 0

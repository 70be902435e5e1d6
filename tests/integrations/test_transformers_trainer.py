"""GuidedTrainer: copies of its model, and the options that it cannot follow."""

import copy
import functools
import inspect
import math
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

datasets = pytest.importorskip("datasets")

from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import vocagno
from corpora import write_corpus
from families import TEXTS
from runs import metrics, train_here, write_config
from score_stores import write_store
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import prepare_rows
from vocagno.data.rows import Row, RowStore
from vocagno.errors import ConfigError, GuidanceError, InputError
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidedCollator,
    GuidedTrainer,
    guided_batch,
    selective_cross_entropy,
)
from vocagno.guidance.batch import TokenCounts, made_for
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods.base import StudentOutput
from vocagno.integrations.columns import add_teacher_loss
from vocagno.integrations.transformers_trainer import _check_arguments
from vocagno.models.head import head_of, hidden_states
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores, MatchedScores, ScoreStore
from vocagno.tokens.student_tokenizer import student_tokenizer

GUIDANCE = GuidanceConfig(top_fraction=0.4)
IDS = torch.arange(6)[None]
SPANS = np.arange(12, dtype=np.int32)[:, None] + np.array([0, 1], np.int32)
ROW = Row(SPANS[:, 0], SPANS, *np.array([[0], [12], [0]]))


def examples(count=4, length=12, guidance=GUIDANCE, student="", **counts):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (count, length), generator=generator)
    losses = torch.rand(count, length, generator=generator)
    names = "with_text", "mapped", "scorable", "scored"
    counts = TokenCounts(**dict.fromkeys(names, length - 1) | counts)
    shared = {"made_for": made_for(guidance, student), "token_counts": counts}
    return [
        {"input_ids": row.numpy(), "labels": row.numpy(), "teacher_loss": loss.numpy(), **shared}
        for row, loss in zip(ids, losses, strict=True)
    ]


def trainer(folder, *, model=None, arguments=None, guidance=GUIDANCE, **options):
    usual = {
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    options.setdefault("train_dataset", examples(guidance=guidance))
    if "data_collator" not in options:
        options["data_collator"] = DataCollatorWithTeacherLoss(guidance)
    arguments = TrainingArguments(str(folder), **{**usual, **(arguments or {})})
    return GuidedTrainer(model or tiny_llama(50), arguments, guidance=guidance, **options)


@pytest.mark.parametrize("made_of", ["columns", "rows"])
def test_a_plain_trainer_learns_the_next_token(tmp_path, made_of):
    """The labels of a batch are shifted already, and transformers would shift them once more."""
    model, data = tiny_llama(50), examples()
    collate = DataCollatorWithTeacherLoss(GUIDANCE)
    if made_of == "rows":
        ids = np.stack([example["input_ids"] for example in data]).astype(np.int32)
        sizes = np.array([ids.shape[1]], np.int32)
        none = np.zeros((ids.shape[1], 2), np.int32)
        data = [Row(row, none, np.zeros(1, np.int64), sizes, 0 * sizes) for row in ids]
        collate = GuidedCollator(None, GUIDANCE, seq_len=ids.shape[1] - 1)
    batch = collate(data)
    with torch.no_grad():
        logits = model(batch["input_ids"]).logits.flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, batch["labels"].flatten())
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], remove_unused_columns=False
    )
    plain = Trainer(model, arguments, data_collator=collate, eval_dataset=data)
    loss = plain.evaluate()["eval_loss"]
    assert loss == pytest.approx(float(expected), abs=1e-3)


def test_a_batch_beyond_the_positions_of_the_model_is_refused(tmp_path):
    model = tiny_llama(50, max_position_embeddings=8)
    with pytest.raises(InputError, match=r"a batch of 11 tokens, but the model reads at most 8"):
        trainer(tmp_path, model=model).train()
    scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    longer = tiny_llama(50, max_position_embeddings=8, rope_parameters=scaled)
    trainer(tmp_path, model=longer).train()


@pytest.mark.slow
def test_a_step_of_an_example_without_scores_stops_nothing(tmp_path):
    """Where other examples have scores: add_teacher_loss has counted those without."""
    (missing,) = examples(1, with_text=0, mapped=0, scorable=0, scored=0, missing=11)
    missing["teacher_loss"] = np.full(12, np.nan, np.float32)
    data = [*examples(2), missing]
    options = {"max_steps": 3, "per_device_train_batch_size": 1}
    trained = trainer(tmp_path, train_dataset=data, arguments=options)
    trained._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(data)
    trained.train()
    assert [line.get("missing") for line in trained.state.log_history][:3] == [None, None, 1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["alm", "distill"])
def test_every_loop_takes_the_step_of_train_py(tmp_path, tokenizer_files, teacher_model, method):
    """From rows of a store, from columns, and from a batch of texts."""
    texts, student = TEXTS[:6], tmp_path / "student"
    PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_files / "student.json"), eos_token="</s>"
    ).save_pretrained(student)
    spans, other = TokenSpans(student), TokenSpans(teacher_model)
    model = tiny_llama(spans.vocabulary_size)
    model.save_pretrained(student)
    corpus = write_corpus(tmp_path / "c.jsonl", texts)
    config = write_config(
        tmp_path,
        corpus,
        tokenizer_files,
        teacher_model,
        student={"model": str(student), "tokenizer": None, "architecture": None},
        teacher={"candidates": 5},
        guidance={"method": method, "top_fraction": None},
        train={"steps": 1, "global_batch": 4, "micro_batch": 4, "log_every": 1},
        optimizer={"max_grad_norm": 1e9},
    )
    assert train_here(config) == 0
    (expected,) = metrics(tmp_path / "run")[0]

    (rows,), (store,) = (list((tmp_path / "cache" / kind).iterdir()) for kind in ("rows", "scores"))
    rows, store = RowStore(rows), ScoreStore(store)
    assert len(rows) == 4
    guidance = GuidanceConfig(method=method)
    targets = {}
    if guidance.needs_candidates:
        targets["targets"] = BucketTargets(vocagno.buckets(spans, other), 5)

    def stepped(data, collate):
        options = {"max_steps": 1, "per_device_train_batch_size": 6, "max_grad_norm": 1e9}
        setup = {"guidance": guidance, "train_dataset": data, "data_collator": collate}
        run = trainer(tmp_path, model=copy.deepcopy(model), arguments=options, **setup, **targets)
        run.train()
        if data[0] is row:  # held-out rows have documents that no store has
            held_out = [replace(row, documents=row.documents + number) for number in (0, 1000)]
            losses = [run.evaluate([held_out_row])["eval_loss"] for held_out_row in held_out]
            assert losses[0] == losses[1]
        return run.state.log_history[0]

    row = rows[0]
    scores = MatchedScores(store, rows, candidates=bool(targets))
    collate = GuidedCollator(scores, guidance, seq_len=32, **targets)
    logged = stepped([row, *(rows[index] for index in range(1, 4))], collate)
    names = (
        "kept_loss",
        "grad_norm",
        "mean_teacher_loss",
        *(["mean_cross_entropy"] if targets else []),
    )
    assert [logged[name] for name in names] == pytest.approx([expected[name] for name in names])

    tokenizer = AutoTokenizer.from_pretrained(student)
    data = datasets.Dataset.from_dict({"text": texts})
    columns = add_teacher_loss(data, tokenizer, store, guidance, **targets)
    logged = stepped(columns, DataCollatorWithTeacherLoss(guidance, **targets))
    documents = [store.document(index, candidates=bool(targets)) for index in range(6)]
    if targets:
        candidates = Candidates.concatenate([document.candidates for document in documents])
        targets["candidates"] = candidates
    nll = np.concatenate([document.nll for document in documents])
    both = spans.encode(texts), other.encode(texts)
    eos = tokenizer.eos_token_id
    batch = guided_batch(spans, *both, nll, guidance, eos_id=eos, **targets)
    states = hidden_states(model, batch.input_ids_BT)
    loss, _ = selective_cross_entropy(
        states, head_of(model), batch.labels_BT, batch.teacher, guidance
    )
    loss = loss / batch.counts.predicted
    loss.backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    loss_and_norm = [logged["loss"], logged["grad_norm"]]
    assert loss_and_norm == pytest.approx([loss.item(), norm.item()], rel=1e-4)


@pytest.mark.slow
def test_a_copy_of_the_model_has_its_own_forward_pass(tmp_path):
    trained = trainer(tmp_path)
    trained.train()
    model = trained.model
    model_copy = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model_copy.parameters():
            parameter.zero_()
    assert not model_copy(input_ids=IDS).logits.any()
    assert model(input_ids=IDS).logits.any()
    guided = {"labels": IDS, "teacher_loss": torch.zeros(IDS.shape)}
    model_copy(input_ids=IDS, **guided).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any(parameter.grad is not None for parameter in model_copy.parameters())


def test_the_model_is_saved_whole(tmp_path):
    model = trainer(tmp_path).model
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(input_ids=IDS).logits, model(input_ids=IDS).logits)


def test_a_second_trainer_of_the_model_follows_its_own_guidance(tmp_path):
    model = trainer(tmp_path).model
    trainer(tmp_path, model=model, guidance=GuidanceConfig(method="cpt"))
    columns = {"labels": IDS, "teacher_loss": torch.zeros(IDS.shape)}
    assert model(input_ids=IDS, **columns).weights_BT.all()
    assert model(input_ids=IDS).logits.shape == (1, 6, 50)


def test_the_model_generates_from_padded_prompts_as_ever(tmp_path):
    """Positions are learned, so each prompt has its own only if the pass is known to take them."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(100)  # a position decides
    mask = (torch.arange(6) > 2).long()[None]
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(IDS, **options)
    assert not torch.equal(model(IDS, attention_mask=mask).logits[0, -1].argmax(), expected[0, 6])
    guided = trainer(tmp_path, model=model).model.eval()
    assert torch.equal(guided.generate(IDS, **options), expected)


def test_a_forward_pass_that_another_library_has_wrapped(tmp_path):
    model = tiny_llama(50)
    usual = model.forward

    @functools.wraps(type(model).forward)  # its signature has `self`, its calls have none
    def wrapped(*inputs, **named):
        return usual(*inputs, **named)

    model.forward = wrapped
    trained = trainer(tmp_path, model=model)
    assert "position_ids" in inspect.signature(trained.model.forward).parameters
    assert trained.model(input_ids=IDS).logits.shape == (1, 6, 50)


@pytest.mark.slow
def test_a_precision_of_its_own_is_taken_off_the_model(tmp_path):
    trained = trainer(tmp_path, arguments={"bf16": True})
    trained.train()
    usual = trained.accelerator.unwrap_model(trained.model_wrapped, keep_fp32_wrapper=False)
    assert usual(input_ids=IDS).logits.shape == (1, 6, 50)


@pytest.mark.slow
def test_weights_of_several_types_are_trained_under_autocast(tmp_path):
    """As axolotl makes them; without autocast torch refuses their products."""
    student = tiny_llama(50).to(torch.bfloat16)
    for name, module in student.named_modules():
        if "norm" in name:
            module.to(torch.float32)
    trained = trainer(tmp_path, model=student, arguments={"bf16": True})
    assert np.isfinite(trained.train().training_loss)


@pytest.mark.slow
def test_a_student_that_diverges_has_a_loss_of_nan(tmp_path):
    guidance = GuidanceConfig(top_fraction=None, max_threshold=0.0)
    options = {"max_steps": 1, "logging_nan_inf_filter": False}
    trained = trainer(tmp_path, guidance=guidance, arguments=options)
    with torch.no_grad():
        trained.model.model.norm.weight.fill_(torch.nan)
    trained.train()
    losses = [line["loss"] for line in trained.state.log_history if "loss" in line]
    assert math.isnan(losses[0])


@pytest.mark.slow
@pytest.mark.parametrize("accepts", [True, False])
def test_accumulation_divides_nothing(tmp_path, accepts):
    """Also for models that say that they do not divide by the count of a step."""
    norms = []
    for rows in (8, 1):
        model = tiny_llama(50)
        model.accepts_loss_kwargs = accepts
        sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 8 // rows}
        arguments = {"max_steps": 1, "max_grad_norm": 1e9, **sizes}
        trained = trainer(tmp_path, model=model, arguments=arguments, train_dataset=examples(8))
        trained.train()
        norms.append([trained.state.log_history[0][name] for name in ("loss", "grad_norm")])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.slow
def test_kept_and_covered_tokens_are_logged(tmp_path):
    trained = trainer(tmp_path, arguments={"logging_steps": 2, "max_steps": 3})
    trained.train()
    *entries, last = trained.state.log_history
    for entry in (*entries, last):  # the third step is logged at the end
        assert entry["kept_fraction"] == pytest.approx(5 / 11)
        assert (entry["coverage"], entry["scored"]) == (1, 1)
        assert math.isfinite(entry["threshold"])
        assert 0 < entry["mean_teacher_loss"] < 1
    assert len(entries) == 1
    assert entries[0]["loss"] > 0
    assert "unmapped" not in last


@pytest.mark.slow
@pytest.mark.parametrize("logging_steps", [1, 500])
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"mapped": 10, "hole": 1}, r"only 90.91% of the tokens map .* Main cause: hole \("),
        ({"scored": 5, "unscored": 6}, r"only 45.45% of the tokens have a .* unscored \("),
        ({"with_text": 0, "missing": 11}, "has scores: the scores are of another corpus"),
    ],
    ids=["hole", "unscored", "missing"],
)
def test_too_few_teacher_losses_stop_training(tmp_path, counts, message, logging_steps):
    trained = trainer(
        tmp_path, arguments={"logging_steps": logging_steps}, train_dataset=examples(**counts)
    )
    with pytest.raises(
        GuidanceError, match=rf"^step {1 if logging_steps == 1 else 2}: .*{message}"
    ):
        trained.train()
    assert "kept_fraction" in trained.state.log_history[-1]


@pytest.mark.parametrize(
    "rule",
    [
        GUIDANCE,
        GuidanceConfig(),
        GuidanceConfig(unit="group", max_threshold=0.1),
        GuidanceConfig(method="rho1", window_max_loss=2.0),
    ],
    ids=str,
)
def test_rows_without_scores_are_evaluated(tmp_path, rule):
    collate, model = GuidedCollator(None, rule, seq_len=11), tiny_llama(50)
    evaluated = trainer(
        tmp_path, model=model, guidance=rule, data_collator=collate, eval_dataset=[ROW] * 4
    )
    loss = evaluated.evaluate()["eval_loss"]
    expected = type(model).forward(model, torch.arange(12)[None], labels=torch.arange(12)[None])
    assert loss == pytest.approx(expected.loss.item(), rel=1e-5)


def test_a_collator_of_held_out_rows_is_of_the_same_class():
    class Masked(GuidedCollator):
        pass

    assert type(Masked(None, GUIDANCE, seq_len=11).without_scores()) is Masked


def test_what_was_made_for_something_else_is_refused_before_the_first_step(tmp_path, tokenizers):
    """Columns, batches or tokenizers of another rule or student would train on other tokens,
    without an error."""
    trained, usual = trainer(tmp_path), DataCollatorWithTeacherLoss(GUIDANCE)

    def refused(words, dataset, collator=usual, error=ConfigError):
        trained.train_dataset, trained.data_collator = dataset, collator
        with pytest.raises(error, match=words):
            trained.get_batch_samples(iter(trained.get_train_dataloader()), 1, torch.device("cpu"))

    other = DataCollatorWithTeacherLoss(GuidanceConfig(top_fraction=0.8))
    words = "collator and trainer: made for guidance"
    refused(rf"^{words}.top_fraction 0.8, not 0.4; give both", examples(), other)
    no_scores = GuidedCollator(None, GUIDANCE, seq_len=11)
    refused(rf"^{words}.method cpt, not vocagno", [ROW] * 4, no_scores)
    groups = examples(guidance=GuidanceConfig())
    refused(r"^columns of another guidance: made for guidance.unit group, not token", groups)
    bare = [{name: row[name] for name in ("input_ids", "labels", "teacher_loss")} for row in groups]
    refused("^examples without made_for, token_counts: make the columns by", bare, error=ValueError)

    def without_facts(rows):
        return {name: value for name, value in usual(rows).items() if name != "facts"}

    refused("^a batch without `facts`: give a GuidedColl", examples(), without_facts, InputError)
    both = [*examples(1, student="a"), *examples(1, student="b")]
    refused("^columns of several student tokenizers", both)
    with pytest.raises(ConfigError, match=r"^columns of several student tokenizers"):
        DataCollatorWithTeacherLoss(GuidanceConfig(method="cpt"))(both)
    trained.processing_class = PreTrainedTokenizerFast(tokenizer_object=tokenizers["llama"])
    refused("^processing_class: is not the student's tokenizer that", examples(student="a"))
    with pytest.raises(ConfigError, match=r"^processing_class: is not the student's tokenizer"):
        trained.evaluate(examples(student="a"))


def test_rows_of_another_store_than_the_scores_are_refused(tmp_path, tokenizer_files):
    """Scores are found by the number of a document, which is another one's there."""
    student = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    rows = []
    for number, texts in enumerate([("one text", "another"), ("another", "one text")]):
        corpus = scan(write_corpus(tmp_path / f"{number}.jsonl", texts))
        rows.append(prepare_rows(corpus, student, 11, tmp_path, show_progress=False)[0])
    scores = [DocumentScores(SPANS[:8], np.ones(8)), DocumentScores(SPANS[:7], np.ones(7))]
    store = write_store(tmp_path / "scores", ["one text", "another"], scores, {}, 2)
    collate = GuidedCollator(MatchedScores(store, rows[0]), GUIDANCE, seq_len=11)
    trainer(tmp_path, train_dataset=rows[0], data_collator=collate)
    with pytest.raises(InputError, match="has other documents than the rows that the scores"):
        trainer(tmp_path, train_dataset=rows[1], data_collator=collate)
    longer = GuidedCollator(None, GUIDANCE, seq_len=2048)
    with pytest.raises(InputError, match="seq_len 2,048 for rows of 11 tokens"):
        trainer(tmp_path, train_dataset=rows[0], data_collator=longer)


def test_the_host_does_not_wait_in_a_step(tmp_path):
    """Values of tensors on `meta` cannot be asked for."""
    trained = trainer(tmp_path)
    trained._sums = trained._sums.to("meta")
    batch = trained.data_collator(examples())
    batches, count = trained.get_batch_samples(iter([batch]), 1, torch.device("meta"))
    sums = torch.empty(len(LossSums._fields), dtype=torch.float64, device="meta")
    output = StudentOutput(torch.empty((), device="meta"), sums, *torch.empty(2, 4, 11))

    def model(**_):
        return output

    model.training = True
    loss = trained.compute_loss(model, batches[0], num_items_in_batch=count)
    assert loss.device == count.device == trained._sums.device


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"compute_metrics": lambda _: {}}, {}, "compute_metrics: not supported"),
        ({"compute_loss_func": lambda *_: 0}, {}, "compute_loss_func: not supported"),
        (
            {"preprocess_logits_for_metrics": lambda logits, _: logits},
            {},
            "preprocess_logits_for_metrics: not supported",
        ),
        ({}, {"label_smoothing_factor": 0.1}, "label_smoothing_factor: the loss is"),
    ],
    ids=["metrics", "loss", "logits", "smoothing"],
)
def test_options_that_would_be_ignored_are_refused(tmp_path, options, arguments, message):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, arguments=arguments, **options)


def test_model_init_is_refused(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(ValueError, match="model_init: not supported"):
        GuidedTrainer(None, arguments, guidance=GUIDANCE, model_init=lambda: tiny_llama(50))


def test_gpus_that_cannot_be_used_are_refused():
    apples = SimpleNamespace(device=torch.device("mps"), n_gpu=1)
    with pytest.raises(ValueError, match="set use_cpu=True"):
        _check_arguments(apples)
    several = SimpleNamespace(device=torch.device("cuda"), n_gpu=2)
    with pytest.raises(ValueError, match="one process sees 2 GPUs"):
        _check_arguments(several)


def test_predict_is_refused_for_lack_of_logits(tmp_path):
    with pytest.raises(ValueError, match="predict: a guided trainer computes no logits"):
        trainer(tmp_path).predict(examples())


def test_a_stream_that_one_process_reads_for_all_is_refused(tmp_path, monkeypatch):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(examples())

    guided_trainer = trainer(tmp_path)
    guided_trainer._check_stream(Stream())
    monkeypatch.setattr(type(guided_trainer.accelerator), "num_processes", 2)
    with pytest.raises(ValueError, match="dispatch_batches"):
        guided_trainer._check_stream(Stream())
    with pytest.raises(ValueError, match="dispatch_batches"):
        guided_trainer.evaluate(Stream())
    guided_trainer._check_stream(examples())
    guided_trainer.accelerator.dataloader_config.dispatch_batches = False
    guided_trainer._check_stream(Stream())


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (lambda model: model, False),
        (lambda model: model.bfloat16(), True),
        (lambda model: model.half(), True),
        (lambda model: model.bfloat16().requires_grad_(False), False),
    ],
    ids=["float32", "bfloat16", "float16", "frozen"],
)
def test_weights_that_lose_small_steps_are_warned_of(tmp_path, recwarn, change, warned):
    trainer(tmp_path, model=change(tiny_llama(50)))
    words = [str(record.message) for record in recwarn if "updates smaller" in str(record.message)]
    assert len(words) == warned
    assert all("Load it with dtype=torch.float32" in message for message in words)


@pytest.mark.parametrize(("limit", "warned"), [(0.7, True), (2.0, False)])
def test_a_limit_that_drops_known_short_lines_is_warned_of(tmp_path, recwarn, limit, warned):
    """`train.py` and `vocagno filter` warn of it, too."""
    trainer(tmp_path, guidance=GuidanceConfig(window_max_loss=limit))
    words = [str(warning.message) for warning in recwarn]
    assert any(word.startswith("window_max_loss: 0.7 is below") for word in words) == warned


@pytest.mark.parametrize(
    ("options", "sums", "words"),
    [
        ({"method": "distill"}, {"pairs": 3}, "only 3.0% of the tokens have a distribution of"),
        ({"method": "distill"}, {"pairs": 30}, None),
        ({"top_fraction": 1.0}, {"threshold": 0.5, "scopes": 1}, "the threshold of guidance.top"),
        ({"top_fraction": 1.0}, {"threshold": -0.5, "scopes": 1}, None),
    ],
)
def test_what_train_py_warns_of_is_warned_of_once(
    tmp_path, tokenizers, recwarn, options, sums, words
):
    guidance, targets = GuidanceConfig(**options), {}
    if guidance.needs_candidates:
        spans = TokenSpans(tokenizers["byte-level"])
        targets["targets"] = BucketTargets(vocagno.buckets(spans, spans), 2)
    collator = DataCollatorWithTeacherLoss(guidance, **targets)
    trained = trainer(tmp_path, guidance=guidance, data_collator=collator, **targets)
    trained.state.max_steps = 2
    names = "predicted kept competing with_text mapped scorable scored".split()
    for step in (1, 2):
        trained.state.global_step = step
        trained._counts = TokenCounts(**dict.fromkeys(names, 100))
        trained._sums += torch.tensor(LossSums(nll=300.0, kept=100.0, **sums))
        trained.log({"loss": 3.0})
    warned = [str(record.message) for record in recwarn if str(record.message).startswith("step ")]
    assert len(warned) == bool(words)
    assert all(message.startswith(f"step 1: {words}") for message in warned)

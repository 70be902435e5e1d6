"""A data set with teacher losses in GuidedTrainer and in TRL's SFTTrainer: one loss in both."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytest.importorskip("trl")

from families import TEXTS
from runs import run
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.rows import document_rows, join_documents
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidedCollator,
    GuidedTrainer,
    add_teacher_loss,
)
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.tokens.token_spans import TokenSpans

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "guided_sft.py"
STEPS = 3
STUDENT = (
    "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
TEACHER = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def student(tokenizers):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers["llama"], eos_token="</s>", chat_template=STUDENT
    )


@pytest.fixture(scope="module")
def teacher(teacher_model):
    config = TeacherConfig(model=str(teacher_model), context=256)
    return ConfiguredTeacher(config, teacher_model, torch.device("cpu")).load()


def options(folder, **settings):
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
        **settings,
    }


def losses(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture
def of_trl(tmp_path, student):
    """Makes a guided SFTTrainer of a model that is given, or of a tiny one."""
    from trl import SFTConfig, SFTTrainer

    class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
        pass

    def make(columns, guidance, model=None, *, loss_type=None, **arguments):
        skips = {"dataset_kwargs": {"skip_prepare_dataset": True}, "gradient_checkpointing": False}
        skips |= {"loss_type": loss_type} if loss_type else {}
        return GuidedSFTTrainer(
            model or tiny_llama(len(student)),
            SFTConfig(**options(tmp_path / "trl", **skips)),
            guidance=guidance,
            train_dataset=columns,
            data_collator=DataCollatorWithTeacherLoss(guidance),
            processing_class=student,
            **arguments,
        )

    return make


@pytest.mark.parametrize("guidance", [GuidanceConfig(), GuidanceConfig(top_fraction=0.4)])
def test_every_trainer_has_the_losses_of_our_own_rows(tmp_path, student, teacher, of_trl, guidance):
    """Sees a trainer that shifts labels twice, drops columns, or divides the loss by another
    count."""
    from transformers import TrainingArguments

    scores = ScoresInOrder(teacher.score(TEXTS))
    spans = TokenSpans(student)
    stream = join_documents(spans.encode(TEXTS), 0, spans.prefix_ids, student.eos_token_id)
    rows = document_rows(stream)
    width = max(len(row.ids) for row in rows)
    collate = GuidedCollator(scores, guidance, seq_len=width - 1, line_ends=spans.line_ends())
    columns = add_teacher_loss(
        datasets.Dataset.from_dict({"text": TEXTS}), student, teacher, guidance
    )
    of_rows, of_columns = (
        GuidedTrainer(
            tiny_llama(len(student)),
            TrainingArguments(**options(tmp_path / "own")),
            guidance=guidance,
            train_dataset=dataset,
            data_collator=collator,
        )
        for dataset, collator in ((rows, collate), (columns, DataCollatorWithTeacherLoss(guidance)))
    )
    trainer = of_trl(columns, guidance, eval_dataset=columns.select(range(4)))
    expected = losses(of_rows)
    assert len(expected) == STEPS
    assert losses(of_columns) == pytest.approx(expected, rel=1e-5)
    assert losses(trainer) == pytest.approx(expected, rel=1e-5)
    assert 0 < trainer.evaluate()["eval_loss"] < 20


ONE = {"input_ids": [[1, 2]], "labels": [[1, 2]], "teacher_loss": [[0.5, 0.5]]}


def test_another_loss_of_trl_is_refused(of_trl):
    with pytest.raises(ValueError, match="loss_type dft: the loss is that of the guidance; leave"):
        of_trl(datasets.Dataset.from_dict(ONE), GuidanceConfig(), loss_type="dft")


def test_a_model_by_its_name_is_loaded(tmp_path, student, of_trl):
    name = str(tmp_path / "student")
    tiny_llama(len(student)).save_pretrained(name)
    trainer = of_trl(datasets.Dataset.from_dict(ONE), GuidanceConfig(method="cpt"), name)
    assert len(losses(trainer)) == STEPS


def test_adapters_that_trl_adds_are_trained(student, teacher, of_trl):
    peft = pytest.importorskip("peft")
    guidance = GuidanceConfig(top_fraction=0.4)
    texts = datasets.Dataset.from_dict({"text": TEXTS})
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    columns = add_teacher_loss(texts, student, teacher, guidance)
    trainer = of_trl(columns, guidance, peft_config=adapters)
    losses(trainer)
    added = {name: weight for name, weight in trainer.model.named_parameters() if "lora_B" in name}
    assert added
    assert all(weight.abs().sum() > 0 for weight in added.values())


def test_the_example_trains_on_conversations(tmp_path, tokenizers, student, teacher_model):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tiny_llama(len(student)).bfloat16().save_pretrained(tmp_path / "student")
    student.save_pretrained(tmp_path / "student")
    other = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers["byte-level"], chat_template=TEACHER
    )
    AutoModelForCausalLM.from_pretrained(teacher_model).save_pretrained(tmp_path / "teacher")
    other.save_pretrained(tmp_path / "teacher")
    lines = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}
        for text in TEXTS
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [tmp_path / name for name in ("student", "teacher", "c.jsonl", "out")]
    run(1, EXAMPLE, *words, HF_HOME=str(tmp_path / "home"))
    before, after = (
        load_file(tmp_path / name / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
        for name in ("student", "out")
    )
    assert after.dtype == torch.float32  # in bfloat16 most updates would be lost to rounding
    assert (before != after).float().mean() > 0.99

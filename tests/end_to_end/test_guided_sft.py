"""A data set with teacher losses in GuidedTrainer and in TRL's SFTTrainer: one loss in both."""

import json
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytest.importorskip("trl")

from families import TEXTS
from runs import environment
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
from vocagno.teacher.corpus_scores import load_teacher_of
from vocagno.tokens.token_spans import TokenSpans
from warm_python import executable

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
    spans = TokenSpans(teacher_model / "tokenizer.json")
    config = TeacherConfig(model=str(teacher_model), context=256)
    return load_teacher_of(config, spans, torch.device("cpu"))


def options(folder, **more):
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
        **more,
    }


def losses(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("guidance", [GuidanceConfig(), GuidanceConfig(top_fraction=0.4)])
def test_every_trainer_has_the_losses_of_our_own_rows(tmp_path, student, teacher, guidance):
    from transformers import TrainingArguments
    from trl import SFTConfig, SFTTrainer

    class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
        pass

    class Known:
        scores = teacher.score(TEXTS)

        def piece(self, document, first_byte, end_byte):
            return self.scores[document]

    def model():
        return tiny_llama(len(student))

    spans = TokenSpans(student)
    stream = join_documents(spans.encode(TEXTS), 0, spans.prefix_ids, student.eos_token_id)
    rows = document_rows(stream)
    width = max(len(row.ids) for row in rows)
    own = GuidedCollator(Known(), guidance, seq_len=width - 1, line_ends=spans.line_ends())
    columns = add_teacher_loss(
        datasets.Dataset.from_dict({"text": TEXTS}), student, teacher, guidance
    )
    arguments = TrainingArguments(**options(tmp_path / "own"))
    of_rows = GuidedTrainer(
        model(), arguments, guidance=guidance, train_dataset=rows, data_collator=own
    )
    collator = DataCollatorWithTeacherLoss(guidance)
    of_columns = GuidedTrainer(
        model(), arguments, guidance=guidance, train_dataset=columns, data_collator=collator
    )
    skips = {"dataset_kwargs": {"skip_prepare_dataset": True}, "gradient_checkpointing": False}
    of_trl = GuidedSFTTrainer(
        model(),
        SFTConfig(**options(tmp_path / "trl", **skips)),
        guidance=guidance,
        train_dataset=columns,
        eval_dataset=columns.select(range(4)),
        data_collator=collator,
        processing_class=student,
    )
    expected = losses(of_rows)
    assert len(expected) == STEPS
    assert losses(of_columns) == pytest.approx(expected, rel=1e-5)
    assert losses(of_trl) == pytest.approx(expected, rel=1e-5)
    assert 0 < of_trl.evaluate()["eval_loss"] < 20


def test_another_loss_of_trl_is_refused(tmp_path, student):
    from trl import SFTConfig, SFTTrainer

    class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
        pass

    skips = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    columns = {"input_ids": [[1, 2]], "labels": [[1, 2]], "teacher_loss": [[0.5, 0.5]]}
    with pytest.raises(ValueError, match="loss_type dft: the loss is that of the guidance; leave"):
        GuidedSFTTrainer(
            tiny_llama(len(student)),
            SFTConfig(**options(tmp_path, loss_type="dft", **skips)),
            guidance=GuidanceConfig(),
            train_dataset=datasets.Dataset.from_dict(columns),
            data_collator=DataCollatorWithTeacherLoss(),
            processing_class=student,
        )


def test_a_model_by_its_name_is_loaded(tmp_path, student):
    from trl import SFTConfig, SFTTrainer

    class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
        pass

    tiny_llama(len(student)).save_pretrained(tmp_path / "student")
    skips = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    columns = {"input_ids": [[1, 2]], "labels": [[1, 2]], "teacher_loss": [[0.5, 0.5]]}
    trainer = GuidedSFTTrainer(
        str(tmp_path / "student"),
        SFTConfig(**options(tmp_path, **skips)),
        guidance=GuidanceConfig(method="cpt"),
        train_dataset=datasets.Dataset.from_dict(columns),
        data_collator=DataCollatorWithTeacherLoss(GuidanceConfig(method="cpt")),
        processing_class=student,
    )
    assert len(losses(trainer)) == STEPS


def test_adapters_that_trl_adds_are_trained(tmp_path, student, teacher):
    peft = pytest.importorskip("peft")
    from trl import SFTConfig, SFTTrainer

    class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
        pass

    guidance = GuidanceConfig(top_fraction=0.4)
    columns = add_teacher_loss(
        datasets.Dataset.from_dict({"text": TEXTS}), student, teacher, guidance
    )
    trainer = GuidedSFTTrainer(
        tiny_llama(len(student)),
        SFTConfig(**options(tmp_path, dataset_kwargs={"skip_prepare_dataset": True})),
        guidance=guidance,
        train_dataset=columns,
        data_collator=DataCollatorWithTeacherLoss(guidance),
        processing_class=student,
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]),
    )
    losses(trainer)
    added = {name: one for name, one in trainer.model.named_parameters() if "lora_B" in name}
    assert added
    assert all(one.abs().sum() > 0 for one in added.values())


def test_the_example_trains_on_conversations(tmp_path, tokenizers, student, teacher_model):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tiny_llama(len(student)).save_pretrained(tmp_path / "student")
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
    done = subprocess.run(
        [executable(), str(EXAMPLE), *map(str, words)],
        env=environment(HF_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = (
        load_file(tmp_path / name / "model.safetensors")["model.norm.weight"]
        for name in ("student", "out")
    )
    assert not torch.equal(before, after)

"""Prompts stay open, whatever a tokenizer adds before and after a text."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("lm_eval")

from evaluation_data import write_benchmarks
from tiny_models import tiny_llama
from vocagno.errors import InputError
from vocagno.evaluation._prompted import suffix_ids
from vocagno.evaluation.benchmarks import BENCHMARKS
from vocagno.evaluation.running import generate_answers, load, prepare_tasks
from vocagno.training.validation import Evaluation

EOS, BOS = "<|endoftext|>", "<s>"
TEMPLATES = {"after": f"$A {EOS}", "both": f"{BOS} $A {EOS}", "twice": f"$A {EOS} {EOS}"}
TEMPLATES |= {"before": f"{BOS} $A", "none": "$A"}


def tokenizer_of(tokenizers, template):
    """A tokenizer that adds what a template says."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizers["byte-level"].to_str())
    backend.add_special_tokens([BOS])
    special = [(token, backend.token_to_id(token)) for token in (EOS, BOS)]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, bos_token=BOS)


def model_of(tokenizer):
    return tiny_llama(len(tokenizer), max_position_embeddings=512, eos_token_id=0)


def from_command(tokenizer, folder):
    """The model as `vocagno eval` loads it."""
    tokenizer.save_pretrained(folder)
    model_of(tokenizer).save_pretrained(folder)
    return load(str(folder), dtype="float32", device="cpu", gguf_file=None, batch_size=3)


def in_training(tokenizer, folder):
    """The model that `train` asks: its student."""
    evaluation = SimpleNamespace(tokenizer=tokenizer, options=SimpleNamespace(batch_size=3))
    return Evaluation._lm(evaluation, model_of(tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("made", [from_command, in_training])
def test_no_prompt_of_a_benchmark_ends_in_an_eos(tmp_path, tokenizers, monkeypatch, made, template):
    """The model reads what stands before a text, and the text."""
    tokenizer = tokenizer_of(tokenizers, TEMPLATES[template])
    lm = made(tokenizer, tmp_path / "model")
    data, read = write_benchmarks(tmp_path / "data"), []
    generate = lm._model_generate

    def seen(context, **options):
        for row, mask in zip(context, options["attention_mask"], strict=True):
            read.append(row[mask.bool()].tolist())
        return generate(context, **options)

    monkeypatch.setattr(lm, "_model_generate", seen)
    tasks = prepare_tasks(lm, BENCHMARKS.values(), data, limit=None, new_tokens=2)
    asked = [item for task in tasks for item in task.asked]
    assert len([pair for batch in generate_answers(lm, asked, 3) for pair in batch]) == len(asked)
    before = [tokenizer.bos_token_id] * (template in ("before", "both"))
    ids = [tokenizer.encode(item.prompt, add_special_tokens=False) for item in asked]
    assert sorted(read) == sorted(before + row for row in ids)
    assert [lm.tok_encode(item.prompt) for item in asked] == [before + row for row in ids]


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_left_truncation_keeps_the_end_of_a_prompt(tokenizers, template):
    """A suffix that goes takes no place from the prompt."""
    tokenizer = tokenizer_of(tokenizers, TEMPLATES[template])
    lm = in_training(tokenizer, None)
    prompts = ["Question: What is 1 + 1?\nAnswer:", "Answer:"]
    before = [tokenizer.bos_token_id] * (template in ("before", "both"))
    whole = [before + tokenizer.encode(text, add_special_tokens=False) for text in prompts]
    longest = len(whole[0])
    for room in (1, 2, len(whole[1]), longest - 1, longest, longest + 1, None):
        kept = -room if room else None
        assert [lm.tok_encode(text, left_truncate_len=room) for text in prompts] == [
            row[kept:] for row in whole
        ]
        ids, mask = lm.tok_batch_encode(prompts, left_truncate_len=room)
        rows = [row[row_mask.bool()].tolist() for row, row_mask in zip(ids, mask, strict=True)]
        assert rows == [row[kept:] for row in whole]


@pytest.mark.slow
def test_a_text_with_its_own_bos_keeps_its_end(tokenizers):
    """lm-eval then adds no special tokens, so that none may go."""
    tokenizer = tokenizer_of(tokenizers, TEMPLATES["both"])
    lm, text = in_training(tokenizer, None), f"{BOS}Answer:"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert lm.tok_encode(text) == ids
    assert lm.tok_batch_encode([text])[0].tolist() == [ids]


def test_special_tokens_that_change_the_text_are_refused():
    changing = SimpleNamespace(
        encode=lambda text, add_special_tokens=True: [1, 2] if add_special_tokens else [3]
    )
    with pytest.raises(InputError, match=r"special tokens change how 'Answer:' is split: \[3\]"):
        suffix_ids(changing)

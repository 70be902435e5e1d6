"""Held-out questions from JSON Lines, and the share of them that a model answers exactly."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from vocagno.errors import InputError
from vocagno.quickstart import accuracy, problems, tokenizers


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    texts = [row["text"] for row in problems.documents(3, 400, 0.4)]
    return tokenizers.train_tokenizers(texts, tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(params=["student", "teacher"])
def tokenizer(request, folders):
    return transformers.AutoTokenizer.from_pretrained(folders[request.param == "teacher"])


def test_questions_are_lines_of_json(tmp_path):
    path = tmp_path / "q.jsonl"
    strange = "a\u2028b\x85c"  # what Python's splitlines would break a line at
    rows = [
        {"question": strange, "answer": "1"},
        {"question": "1 + 1", "answer": 2, "idx": 7},
        {"question": "1 / 4", "answer": 0.250},
    ]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"\ufeff{text}\r\n \n".replace("0.25", "0.250"), encoding="utf-8")
    found = [(one.question, one.answer) for one in accuracy.read_questions(path)]
    assert found == [(strange, "1"), ("1 + 1", "2"), ("1 / 4", "0.250")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no questions in it; expected an object as"),
        (b"\xff\n", "not UTF-8"),
        (b'{"question": "a", "answer": "1"}\n{"question"', "line 2: not JSON"),
        (b'{"question": "a"}\n', r"line 1: no field `answer` \(its fields: question\); expected"),
        (b'\n{"question": "a", "answer": true}\n', "line 2: `answer` is True; expected"),
        (b'{"question": "a", "answer": NaN}\n', "line 1: `answer` is nan; expected"),
        (b"[1]\n", r"line 1: \[1\]; expected an object as"),
        (b"[" * 100_000, r"line 1: not JSON \(.*recursion"),
        (b'{"question": "a", "answer": "\\ud800"}\n', r"line 1: `answer` has half of a \\u pair"),
    ],
)
def test_wrong_questions_name_their_line(tmp_path, data, message):
    path = tmp_path / "q.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"q\.jsonl(, |: ){message}"):
        accuracy.read_questions(path)


class Scripted:
    """A model that continues a question as its script says, whatever the padding."""

    def __init__(self, tokenizer, script):
        self.device, self.training = torch.device("cpu"), True
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self.rows = []
        for question, text in script.items():
            prompt, whole = (
                bos + tokenizer(part, add_special_tokens=False)["input_ids"]
                for part in (f"{question}\n", f"{question}\n{text}")
            )
            self.rows.append((prompt, [*whole[len(prompt) :], tokenizer.eos_token_id]))

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode

    def generate(self, *, input_ids, attention_mask, generation_config):
        prompts = [
            row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)
        ]
        answers = [next(new for prompt, new in self.rows if prompt == p) for p in prompts]
        eos = generation_config.eos_token_id
        length = generation_config.max_new_tokens
        padded = [(new + [eos] * length)[:length] for new in answers]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)


def test_only_the_exact_answer_counts(tokenizer):
    script = {
        "Right?": ("1 + 1 = 2\nAnswer: 2\n\nNext question?\nAnswer: 3\n", "2"),
        "Right at the end of the text, and a longer question?": ("Answer: 12π", "12π"),
        "Wrong?": ("Answer: 20\n", "2"),
        "Never answered?": ("1 + 1 = 2\n", "2"),
        "Named, not answered?": ("The Answer: 2\n", "2"),
        "Unit lost?": ("Answer: 7\n", "7 €"),
    }
    asked = [SimpleNamespace(question=q, answer=gold) for q, (_, gold) in script.items()]
    model = Scripted(tokenizer, {q: text for q, (text, _) in script.items()})
    for batch_size in (1, 2, 100):
        right = accuracy.exact_answer_accuracy(
            model, tokenizer, asked, max_new_tokens=60, batch_size=batch_size
        )
        assert right == pytest.approx(2 / 6)
    assert model.training


def test_accuracy_agrees_with_generate(tokenizer):
    """A batch with padding is answered as each prompt alone."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    lines = next(problems.documents(3, 1, 0.4))["text"].splitlines()[:5]
    prompts = [f"{line}\n" for line in lines if line]
    together = accuracy.greedy_texts(model, tokenizer, prompts, max_new_tokens=12, batch_size=3)
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    for prompt, text in zip(prompts, together, strict=True):
        ids = torch.tensor([bos + tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        alone = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert text == tokenizer.decode(alone[0, ids.shape[1] :], skip_special_tokens=True)


def test_no_problems_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="problems is empty"):
        accuracy.exact_answer_accuracy(None, tokenizer, [])

"""The quickstart's corpus and its two tokenizers: same seed, same files, no leaks; and the share of
held-out questions that a model answers exactly."""

import json
import random
import re
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import tiny_llama
from vocagno.errors import InputError
from vocagno.quickstart import problems, tokenizers

SIZES = {"train_documents": 400, "valid_documents": 50, "questions": 100, "noise_fraction": 0.4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    paths = problems.write_corpus(
        tmp_path_factory.mktemp("corpus"), seed=3, teacher_documents=100, **SIZES
    )
    return {
        name: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for name, path in paths.items()
    }


@pytest.fixture(scope="module")
def texts(corpus):
    return [row["text"] for row in corpus["train"]]


@pytest.fixture(scope="module")
def folders(texts, tmp_path_factory):
    return tokenizers.train_tokenizers(texts, tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(params=["student", "teacher"])
def tokenizer(request, folders):
    return transformers.AutoTokenizer.from_pretrained(folders[request.param == "teacher"])


# ---- problems


def test_the_same_seed_gives_the_same_files(tmp_path):
    first = problems.write_corpus(tmp_path / "a", seed=1, **SIZES)
    again = problems.write_corpus(tmp_path / "b", seed=1, **SIZES)
    other = problems.write_corpus(tmp_path / "c", seed=2, **SIZES)
    for name in ("train", "valid-clean", "problems"):
        assert first[name].read_bytes() == again[name].read_bytes()
        assert first[name].read_bytes() != other[name].read_bytes()


def test_no_held_out_question_is_trained_on(corpus):
    held_out = {row["question"] for row in corpus["problems"]}
    assert len(held_out) == SIZES["questions"]
    for name in ("train", "teacher-train"):
        lines = {line for row in corpus[name] for line in row["text"].splitlines()}
        assert not held_out & lines
    valid = {line for row in corpus["valid-clean"] for line in row["text"].splitlines()}
    train = {line for row in corpus["train"] for line in row["text"].splitlines()}
    assert not {line for line in valid & train if line.endswith(("?", "$x$."))}


@pytest.mark.parametrize("template", problems.TEMPLATES, ids=lambda t: t.__name__)
def test_the_question_decides_the_side(template):
    """Equal questions have equal operands, and each template has problems on both sides."""
    rng, sides, answers = random.Random(0), {}, {}
    for _ in range(3_000):
        drawn = template(rng)
        assert sides.setdefault(drawn.question, drawn.held_out) == drawn.held_out
        assert answers.setdefault(drawn.question, drawn.answer) == drawn.answer
    assert 0.04 < sum(sides.values()) / len(sides) < 0.25


def value(term):
    """The number that a term of a working stands for, with x and π left out."""
    term = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1÷\2", term).replace("$", "")
    if term.strip() == "x":
        return None
    numbers = [Fraction(n) for n in re.findall(r"\d+", term)]
    signs = re.findall(r"[+−×÷-]", re.sub(r"×\s*π|[πx]", "", term))
    result = numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        result = {
            "+": result + number,
            "−": result - number,
            "-": result - number,
            "×": result * number,
            "÷": result / number,
        }[sign]
    return result


@pytest.mark.parametrize("template", problems.TEMPLATES, ids=lambda t: t.__name__)
def test_every_line_of_the_working_is_true(template):
    rng = random.Random(1)
    for _ in range(300):
        drawn = template(rng)
        for line in drawn.working:
            terms = line.split(": ")[-1].split(" = ")
            values = [value(term) for term in terms if not re.fullmatch(r"\$?\d*x", term)]
            assert len(set(values)) == 1, line
        last = re.findall(r"\d+", drawn.working[-1])[-1]
        assert re.findall(r"\d+", drawn.answer) == [last]


def test_noise_has_its_share_of_lines_and_stands_between_problems():
    rows = list(problems.documents(5, 500, 0.4))
    clean = list(problems.documents(5, 500, 0.0))
    blocks = [block for row in rows for block in row["text"].strip().split("\n\n")]
    mathematics = [block for block in blocks if problems.ANSWER_PREFIX in block]
    lines = sum(block.count("\n") + 1 for block in blocks)
    assert sum(b.count("\n") + 1 for b in mathematics) / lines == pytest.approx(0.6, abs=0.03)
    for block in mathematics:
        assert len(re.findall("^Answer: ", block, re.MULTILINE)) == 1
        assert block.splitlines()[-1].startswith(problems.ANSWER_PREFIX)
    assert all(
        problems.ANSWER_PREFIX in b for row in clean for b in row["text"].strip().split("\n\n")
    )
    assert len({problems.noise_line(random.Random(seed)) for seed in range(500)}) > 490


def test_a_noise_fraction_of_one_is_refused():
    with pytest.raises(ValueError, match="noise_fraction"):
        next(problems.documents(0, 1, 1.0))


# ---- tokenizers

STRINGS = [
    "Zoë buys ½ of 12 × 3 − 4 ÷ 2 = 2π €",
    "🙂 👩‍🔬 𝒜 数学 e\u0301 \ufeff\x00",
    "  two  spaces \t tab\r\n\n\nlines\n",
    "",
    " ",
    "<0x41> <unk",
    "$x = \\frac{12}{4} = 3$",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", STRINGS)
def test_both_tokenizers_are_lossless(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids


def test_the_tokenizers_differ_in_special_tokens_and_digits(folders):
    student, teacher = map(transformers.AutoTokenizer.from_pretrained, folders)
    assert (len(student), len(teacher)) == (
        tokenizers.STUDENT_VOCABULARY,
        tokenizers.TEACHER_VOCABULARY,
    )
    assert (student.bos_token, student.eos_token) == ("<s>", "</s>")
    assert (teacher.bos_token, teacher.eos_token) == (None, "<|endoftext|>")
    assert student.tokenize("9\n1234 🙂") == [
        *("▁", "9", "<0x0A>", "1", "2", "3", "4", "▁"),
        *("<0xF0>", "<0x9F>", "<0x99>", "<0x82>"),
    ]
    assert student("x")["input_ids"][0] == student.bos_token_id
    assert all(
        len(re.findall(r"\d", token)) <= 1 for token in student.get_vocab() if token[0] != "<"
    )
    longest = max(re.findall(r"\d+", token) or [""] for token in teacher.get_vocab())
    assert all(len(digits) <= 3 for digits in longest)
    assert len(teacher.tokenize("x = 42")) < len(student.tokenize("x = 42"))


def test_a_model_beside_the_tokenizer_does_not_change_it(folders, tmp_path):
    """transformers picks a tokenizer class by the model's type where a `config.json` names one."""
    text = "Zoë has 12 🙂 apples"
    for folder in folders:
        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        loaded.save_pretrained(tmp_path / folder.name)
        transformers.LlamaConfig(vocab_size=len(loaded)).save_pretrained(tmp_path / folder.name)
        beside = transformers.AutoTokenizer.from_pretrained(tmp_path / folder.name)
        assert beside(text)["input_ids"] == loaded(text)["input_ids"]


# ---- exact answers


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
    questions = [(row["question"], row["answer"]) for row in problems.read_questions(path)]
    assert questions == [(strange, "1"), ("1 + 1", "2"), ("1 / 4", "0.250")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no questions in it; expected an object as"),
        (b"\xff\n", "not UTF-8"),
        (b'{"question": "a", "answer": "1"}\n{"question"', "line 2: not JSON"),
        (b'{"question": "a"}\n', "line 1: has no `answer`; expected an object as"),
        (b'\n{"question": "a", "answer": true}\n', "line 2: answer: expected text, got True"),
        (b"[1]\n", "line 1: expected an object, got a list"),
        (b"[" * 100_000, r"line 1: not JSON \(.*recursion"),
        (b'{"question": "a", "answer": "\\ud800"}\n', "line 1: answer: expected text, got "),
    ],
)
def test_wrong_questions_name_their_line(tmp_path, data, message):
    path = tmp_path / "q.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"q\.jsonl(, |: ){message}"):
        problems.read_questions(path)


def test_only_the_exact_answer_counts(monkeypatch):
    script = {
        "Right?": ("1 + 1 = 2\nAnswer: 2\n\nNext question?\nAnswer: 3\n", "2"),
        "Right at the end of the text, and a longer question?": ("Answer: 12π", "12π"),
        "Wrong?": ("Answer: 20\n", "2"),
        "Never answered?": ("1 + 1 = 2\n", "2"),
        "Named, not answered?": ("The Answer: 2\n", "2"),
        "Unit lost?": ("Answer: 7\n", "7 €"),
    }
    asked = [{"question": q, "answer": gold} for q, (_, gold) in script.items()]
    answers = {f"{question}\n": text for question, (text, _) in script.items()}

    def greedy_texts(_model, _tokenizer, prompts, *, max_new_tokens, batch_size):
        assert (max_new_tokens, batch_size) == (60, 2)
        return [answers[prompt] for prompt in prompts]

    monkeypatch.setattr(problems, "greedy_texts", greedy_texts)
    right = problems.exact_answer_accuracy(None, None, asked, max_new_tokens=60, batch_size=2)
    assert right == pytest.approx(2 / 6)


def test_accuracy_agrees_with_generate(tokenizer):
    """A batch with padding is answered as each prompt alone, up to the end of a text."""
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"))
    model = tiny_llama(len(tokenizer), initializer_range=0.3, **ids)
    greedy = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    lines = next(problems.documents(3, 1, 0.4))["text"].splitlines()[:5]
    prompts = [f"{line}\n" for line in lines if line]

    def alone(prompt):
        ids = torch.tensor([bos + tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        made = model.generate(ids, **greedy, eos_token_id=tokenizer.eos_token_id)
        return made[0, ids.shape[1] :].tolist()

    rows = model.lm_head.weight.data  # the first text now ends at its sixth token
    rows[tokenizer.eos_token_id] = 1.01 * rows[alone(prompts[0])[5]]
    assert len(alone(prompts[0])) < 12
    model.train()
    together = problems.greedy_texts(model, tokenizer, prompts, max_new_tokens=12, batch_size=3)
    assert model.training
    expected = [tokenizer.decode(alone(prompt), skip_special_tokens=True) for prompt in prompts]
    assert together == expected


def test_no_problems_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="problems is empty"):
        problems.exact_answer_accuracy(None, tokenizer, [])

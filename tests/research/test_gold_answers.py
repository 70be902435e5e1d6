"""Gold answers: what a model loses on them, and on the final number."""

import json

import numpy as np
import pytest

from research.gold_answers import main
from score_stores import write_store
from vocagno.teacher.score_store import DocumentScores

QUESTIONS = [
    {"question": "How many é?", "answer": "4 + 5 = <<4+5=9>>9, 9 x 2 = <<9*2=18>>18.\n#### 18"},
    {"question": "And of ≠? ", "answer": "It is twelve.\n#### 1,200"},
    {"question": "Last?", "answer": "One #### two.\n#### 3"},
]
TEXTS = [
    "Question: How many é?\nAnswer: 4 + 5 = 9, 9 x 2 = 18. The answer is 18.",
    "Question: And of ≠?\nAnswer: It is twelve. The answer is 1,200.",
    "Question: Last?\nAnswer: One #### two. The answer is 3.",
]
"""The wording of the few-shot prompts, typed out."""
ANSWERS = [text[text.index("Answer:") + len("Answer:") :] for text in TEXTS]
NUMBERS = [" 18.", " 1,200.", " 3."]
SIZES, NUMBER_SIZES = (np.array([*map(len, texts)]) for texts in (ANSWERS, NUMBERS))


def write_losses(folder, losses_by_text, merged=(), **made_from):
    """A store in which each byte of a text is a token, but for the bytes of each text that are
    `merged`, (first, stop) from its end: these are one token."""
    documents = []
    for number, (text, losses) in enumerate(losses_by_text.items()):
        edges = np.arange(len(text.encode()) + 1, dtype=np.int32)
        if merged:
            first, stop = (edges[-1] + place for place in merged[number])
            edges = np.delete(edges, range(first + 1, stop))
        spans = np.stack([edges[:-1], edges[1:]], 1)
        documents.append(DocumentScores(spans, np.add.reduceat(np.float16(losses), edges[:-1])))
    facts = {"teacher": "planted"} | made_from
    write_store(folder, [*losses_by_text], documents, facts, per_shard=len(TEXTS))


def losses(on_question, on_answer, on_number):
    """The losses of each byte of each text; a number has its space and its full stop."""
    by_text = {}
    for text, size, of_number in zip(TEXTS, SIZES, NUMBER_SIZES, strict=True):
        by_text[text] = np.full(len(text.encode()), float(on_question))
        by_text[text][-size:] = on_answer
        by_text[text][-of_number:] = on_number
    return by_text


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["gold_answers", *map(str, arguments)])
    main()


def test_the_text_is_that_of_the_prompts_without_annotations(questions, tmp_path, monkeypatch):
    text, part = tmp_path / "text.jsonl", tmp_path / "part.jsonl"
    run(monkeypatch, questions, "--write", text)
    assert [json.loads(line)["text"] for line in text.read_text().splitlines()] == TEXTS
    run(monkeypatch, questions, "--write", part, "--most", "2")
    assert [json.loads(line)["text"] for line in part.read_text().splitlines()] == TEXTS[:2]
    before = questions.read_bytes()
    with pytest.raises(SystemExit, match=r"questions.jsonl: exists; delete it first"):
        run(monkeypatch, questions, "--write", questions)
    assert questions.read_bytes() == before


def test_only_the_answer_counts(questions, tmp_path, monkeypatch, capsys):
    """Half a nat on each byte of an answer, whatever the question costs: no number has half of the
    probability. With an eighth those of three and four bytes have, and that of seven has not."""
    for name, of_name in {"a": (7, 0.5, 0.5), "b": (1, 0.25, 0.125), "c": (1, 0.25, 0.25)}.items():
        write_losses(tmp_path / name, losses(*of_name))
    run(monkeypatch, questions, *(tmp_path / name for name in "abc"))
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| a | 0.5000 ± 0.0000 | - | 0.0% ± 0.0% |"
    assert rows[4].startswith("| c | 0.2500 ± 0.0000 | -0.2500 ± 0.0000 |")
    lost = 0.25 * SIZES - 0.125 * NUMBER_SIZES
    mean = lost.sum() / SIZES.sum()
    error = np.std(lost - mean * SIZES, ddof=1) * 3**0.5 / SIZES.sum()
    assert error > 1e-3
    measured = f"{mean:.4f} ± {error:.4f} | {mean - 0.5:+.4f} ± {error:.4f}"
    assert rows[3] == f"| b | {measured} | 66.7% ± 27.2% |"  # sqrt(2/3 * 1/3 / 3)
    run(monkeypatch, questions, tmp_path / "a", tmp_path / "b", "--most", "2")
    assert "| 50.0% ± 35.4% |" in capsys.readouterr().out  # sqrt(1/2 * 1/2 / 2)


def test_a_number_is_judged_alike_however_it_is_cut(questions, tmp_path, monkeypatch, capsys):
    """As one token, ` 18.`, it has the probability of its bytes."""
    by_text = losses(1, 0.25, 0.125)
    write_losses(tmp_path / "bytes", by_text)
    write_losses(tmp_path / "merged", by_text, [(-size, 0) for size in NUMBER_SIZES])
    run(monkeypatch, questions, tmp_path / "bytes", tmp_path / "merged")
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[-2] for row in rows[2:]] == [" 66.7% ± 27.2% "] * 2


@pytest.mark.parametrize("sizes", [SIZES, NUMBER_SIZES], ids=["answer", "number"])
def test_a_token_across_a_beginning_is_refused(questions, tmp_path, monkeypatch, sizes):
    """Its loss is of the question, too, or of the reasoning."""
    write_losses(tmp_path / "a", losses(1, 1, 1), [(-size - 1, -size + 1) for size in sizes])
    with pytest.raises(SystemExit, match="covers the beginning of the answer, or number"):
        run(monkeypatch, questions, tmp_path / "a")


def test_an_answer_without_all_of_its_losses_is_named(questions, tmp_path, monkeypatch):
    by_text = losses(1, 1, 1)
    write_losses(tmp_path / "part", {TEXTS[0]: by_text[TEXTS[0]]})
    with pytest.raises(SystemExit, match=r"part: has no loss on 'Question: And of .*not scored"):
        run(monkeypatch, questions, tmp_path / "part")
    by_text[TEXTS[1]][-3] = np.nan
    write_losses(tmp_path / "holed", by_text)
    with pytest.raises(SystemExit, match="a token of the answer has no loss"):
        run(monkeypatch, questions, tmp_path / "holed")


def test_models_that_read_in_other_ways_are_not_compared(questions, tmp_path, monkeypatch):
    write_losses(tmp_path / "a", losses(1, 1, 1), context=512)
    write_losses(tmp_path / "b", losses(1, 1, 1), context=32)
    with pytest.raises(SystemExit, match=r"b and .*a: context is 32 and 512"):
        run(monkeypatch, questions, tmp_path / "a", tmp_path / "b")
    write_losses(tmp_path / "x" / "a", losses(1, 1, 1), context=512)
    with pytest.raises(SystemExit, match="give the stores two names"):
        run(monkeypatch, questions, tmp_path / "a", tmp_path / "x" / "a")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "answer": "b 4"}', "does not end in '#### NUMBER'"),
        ('{"question": "a", "answer": "b #### "}', "does not end in '#### NUMBER'"),
        ('{"question": "a", "answer": 4}', "q.jsonl, line 1: needs `question` and `answer`"),
        ('{"question": "a\\ud800", "answer": "#### 4"}', "lone surrogate"),
        ('{"question": "a", "answer": "#### 4"}', "has 1 questions, needs 2"),
        ("", "has 0 questions"),
    ],
)
def test_a_file_of_something_else_is_refused(line, message, tmp_path, monkeypatch):
    path = tmp_path / "q.jsonl"
    path.write_text(line)
    with pytest.raises(SystemExit, match=message):
        run(monkeypatch, path, "--write", tmp_path / "text.jsonl")
    assert not (tmp_path / "text.jsonl").exists()
    with pytest.raises(SystemExit, match="either --write TEXT or stores"):
        run(monkeypatch, path)
    with pytest.raises(SystemExit, match="--most: expected 2 questions or more"):
        run(monkeypatch, path, tmp_path, "--most", "-1")

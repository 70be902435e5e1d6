"""Gold answers: what a model loses on them, and on only the final number."""

import json

import numpy as np
import pytest

from research.gold_answers import GoldAnswer, main
from vocagno.data.corpus import text_hash
from vocagno.data.store.building import finish_store
from vocagno.teacher.score_store import SCORES, DocumentScores, write_scores

QUESTIONS = [
    {"question": "How many é?", "answer": "4 + 5 = <<4+5=9>>9.\n#### 9"},
    {"question": "And of ≠? ", "answer": "It is twelve.\n#### 1,200"},
]
TEXTS = [
    "Question: How many é?\nAnswer: 4 + 5 = 9. The answer is 9.",
    "Question: And of ≠?\nAnswer: It is twelve. The answer is 1,200.",
]
"""The wording of the few-shot prompts, typed out."""


def write_byte_losses(folder, losses_by_text):
    """A store in which each byte of a text is a token with a loss of its own."""
    documents, hashes = [], []
    for text, loss in losses_by_text.items():
        edges = np.arange(len(text.encode()) + 1, dtype=np.int32)
        documents.append(DocumentScores(np.stack([edges[:-1], edges[1:]], 1), np.float16(loss)))
        hashes.append(text_hash(text))
    write_scores(folder / "shard-00000.arrow", hashes, documents, {"teacher": "planted"})
    finish_store(folder, ["shard-00000"], SCORES)


def losses_of(text, on_question, on_answer, on_number):
    """(bytes,) losses; the answer starts after `Answer:`, and a full stop follows the number."""
    asked, answered = (text[: text.index(mark) + len(mark)] for mark in ("Answer:", "answer is "))
    asked, answered, end = (len(part.encode()) for part in (asked, answered, text))
    parts = (on_question, asked), (on_answer, answered - asked), (on_number, end - answered - 1)
    return np.concatenate([*(np.full(size, loss) for loss, size in parts), [on_answer]])


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["gold_answers", *map(str, arguments)])
    main()


def test_the_text_is_that_of_the_prompts_without_annotations(questions, tmp_path, monkeypatch):
    text = tmp_path / "text.jsonl"
    run(monkeypatch, questions, "--write", text)
    assert [json.loads(line)["text"] for line in text.read_text().splitlines()] == TEXTS
    run(monkeypatch, questions, "--write", text, "--most", "1")
    assert [json.loads(line)["text"] for line in text.read_text().splitlines()] == TEXTS[:1]


def test_only_the_answer_counts(questions, tmp_path, monkeypatch, capsys):
    """0.5 nats on each byte of an answer but its number, whatever the question costs; the number of
    one byte has more than half of the probability, that of five (1,200) less."""
    write_byte_losses(tmp_path / "a", {text: losses_of(text, 7, 0.5, 0.5) for text in TEXTS})
    write_byte_losses(tmp_path / "b", {text: losses_of(text, 1, 0.25, 0.125) for text in TEXTS})
    run(monkeypatch, questions, tmp_path / "a", tmp_path / "b")
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| a | 0.5000 ± 0.0000 | - | 50.0% |"
    sizes = np.array(
        [len(" 4 + 5 = 9. The answer is 9."), len(" It is twelve. The answer is 1,200.")]
    )
    lost = 0.25 * sizes - 0.125 * np.array([1, 5])
    mean = lost.sum() / sizes.sum()
    error = np.sqrt(2 * ((lost - mean * sizes) ** 2).sum()) / sizes.sum()
    of_b = f"| b | {mean:.4f} ± {error:.4f} | {mean - 0.5:+.4f} ± {error:.4f} | 100.0% |"
    assert rows[3] == of_b  # five bytes of 0.125 nats: 0.54 of the probability
    assert np.exp(-5 * 0.125) > 0.5 > np.exp(-5 * 0.5)


def test_an_answer_without_all_of_its_losses_is_named(questions, tmp_path, monkeypatch):
    write_byte_losses(tmp_path / "part", {TEXTS[0]: losses_of(TEXTS[0], 1, 1, 1)})
    with pytest.raises(SystemExit, match=r"part: has no scores of 'Question: And of .*not scored"):
        run(monkeypatch, questions, tmp_path / "part")
    holed = losses_of(TEXTS[1], 1.0, 1.0, 1.0)
    holed[-3] = np.nan
    losses = {TEXTS[0]: losses_of(TEXTS[0], 1, 1, 1), TEXTS[1]: holed}
    write_byte_losses(tmp_path / "holed", losses)
    with pytest.raises(SystemExit, match="a token of the answer has no loss"):
        run(monkeypatch, questions, tmp_path / "holed")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "answer": "b 4"}', "does not end in '#### NUMBER'"),
        ('{"question": "a", "answer": "b #### "}', "does not end in '#### NUMBER'"),
        (
            '{"question": "a", "answer": 4}',
            "q.jsonl, line 1: needs `question` and `answer`",
        ),
        ("", "has no questions"),
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


def test_the_last_mark_ends_the_reasoning():
    answer = GoldAnswer.of("q", "a #### b #### 7")
    assert answer.text.endswith(" a #### b The answer is 7.")

"""`vocagno align`, `overlap` and `describe`: by the commands a user would type."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import oracle
from corpora import write_corpus
from families import TEXTS

pytest.importorskip("jsonargparse")
pytest.importorskip("rich")

from vocagno import TokenizedTexts, TokenSpans
from vocagno.cli import alignment
from vocagno.cli.app import main
from vocagno.views.statistics import AlignmentRates


@pytest.fixture
def pair(tokenizer_files):
    return [str(tokenizer_files / f"{side}.json") for side in ("student", "teacher")]


def stdin(monkeypatch, data):
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False)
    )


def result(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_mapping_as_json(pair, capsys):
    found = json.loads(result(capsys, "align", *pair, "😊 x"))
    assert found["text"] == "😊 x"
    assert found["student"]["tokens"][:5] == ["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x8A>"]
    assert found["student"]["spans"][:5] == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert found["student"]["spans_from"] == found["teacher"]["spans_from"] == "ids"
    assert found["reasons"][:2] == ["special", "mapped"]
    assert found["mapping"][0] == [-1, -1]
    assert found["coverage"] == 1
    assert len(found["mapping"]) == len(found["student"]["ids"]) == sum(found["counts"].values())


def test_the_text_from_a_file_from_stdin_or_as_an_argument(pair, capsys, monkeypatch, tmp_path):
    for any_text in (" ", "null", "[1, 2]", "yes: no", "-"):  # none is read as YAML
        assert json.loads(result(capsys, "align", *pair, any_text, "--json"))["text"] == any_text
    text = "  a\r\nb\u2028é "
    (tmp_path / "t.txt").write_bytes(text.encode())
    given = json.loads(result(capsys, "align", *pair, text, "--json"))
    assert json.loads(result(capsys, "align", *pair, "--file", str(tmp_path / "t.txt"))) == given
    for arguments in ([], ["--file", "-"]):
        stdin(monkeypatch, text.encode())
        assert json.loads(result(capsys, "align", *pair, *arguments)) == given
    assert given["text"] == text


def test_special_tokens_round_the_text(pair, capsys):
    found = json.loads(result(capsys, "align", *pair, "a b", "--special_tokens"))
    assert found["student"]["tokens"][0] == "<s>"
    assert found["student"]["spans"][0] == [0, 0]
    assert found["reasons"][0] == "special"


def test_a_picture_in_the_terminal(pair, capsys):
    drawn = result(capsys, "align", *pair, "😊 x", "--picture")
    assert "F0│9F│98│8A" in drawn
    assert "×" in drawn
    assert "1 unmapped (1 special). Coverage: 100 %." in drawn


def test_page(pair, capsys, tmp_path):
    page = tmp_path / "p.html"
    assert result(capsys, "align", *pair, "a <b>", "--html", str(page)) == ""
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert "<script" not in html
    assert "&lt;" in html


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (["text", "--file", "x"], b"", "--file: there is a text"),
        (["text", "--json", "--picture"], b"", "--json and --picture: choose one"),
        (["a\udcff"], b"", "text: not UTF-8 at byte 1 (0xFF)"),
        ([""], b"", "text: no text; "),
        ([], b"ab\xc3(", "standard input: not UTF-8 at byte 2 (0xC3)"),
        ([], b"", "standard input: no text"),
        ([], None, "standard input is closed; give the text, or --file FILE"),
    ],
)
def test_wrong_arguments_and_texts_that_are_none(
    pair, capsys, monkeypatch, arguments, given, message
):
    if given is None:
        monkeypatch.setattr(sys, "stdin", None)  # as Python has it after `<&-`
    else:
        stdin(monkeypatch, given)
    assert main(["align", *pair, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_text_too_long_to_show_or_to_draw(pair, capsys, monkeypatch):
    stdin(monkeypatch, b"a" * 300_000)
    assert main(["align", *pair, "--picture"]) == 2
    assert "the text has 300,000 bytes; at most 200,000 are drawn" in capsys.readouterr().err
    monkeypatch.setattr(alignment, "MOST_BYTES", 1_000)
    stdin(monkeypatch, b"a" * 1_001)
    assert main(["align", *pair, "--json"]) == 2
    assert "standard input: more than 1,000 bytes" in capsys.readouterr().err


def test_overlap_of_vocabularies(pair, capsys, tokenizers):
    found = json.loads(result(capsys, "overlap", *pair, "--json"))
    left, right = (tokenizers[name].get_vocab() for name in ("llama", "byte-level"))
    shared = found["vocabulary"]
    assert shared["shared_strings"] == len(left.keys() & right.keys())
    assert (shared["student_size"], shared["teacher_size"]) == (len(left), len(right))
    assert shared["string_share"] == shared["shared_strings"] / len(right)
    mine, theirs = (TokenSpans(path).pieces() for path in pair)
    both = (set(mine) & set(theirs)) - {None}
    shares = shared["student_byte_share"], shared["teacher_byte_share"]
    assert shares[0] == sum(piece in both for piece in mine) / len(left)
    assert shares[1] == sum(piece in both for piece in theirs) / len(right)
    assert shares[0] > shared["string_share"]  # `▁the` is `Ġthe`
    assert found["corpus"] is None
    printed = result(capsys, "overlap", *pair)
    assert f"shared strings        {shared['shared_strings']:,}, " in printed
    assert f"{shares[1]:.1%} of the teacher's entries, {shares[0]:.1%} of the stu" in printed


def test_overlap_on_a_corpus(pair, capsys, tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS[:6], "", "∑"])
    rates = json.loads(result(capsys, "overlap", *pair, str(corpus), "--json"))["corpus"]
    assert rates["documents"] == 8
    assert rates["coverage"] == 1
    assert rates["special"] == 1  # the dummy prefix before ∑
    assert rates["mapped"] == rates["with_text"] == rates["student_tokens"] - rates["special"]
    assert rates["one_to_one"] + rates["one_to_many"] + rates["many_to_one"] == rates["mapped"]
    assert rates["student_proved"] == rates["teacher_proved"] == 8
    student, teacher = (TokenSpans(path) for path in pair)
    found = [
        oracle.groups(student.encode([text]).spans, teacher.encode([text]).spans)[0]
        for text in [*TEXTS[:6], "∑"]
    ]
    sizes = np.diff(np.concatenate(found)).ravel().tolist()
    assert (rates["groups"], rates["largest_group"]) == (len(sizes), max(sizes))
    assert rates["in_large_groups"] == 0
    printed = result(capsys, "overlap", *pair, str(corpus))
    assert f"groups                {len(sizes):,}, the largest of {max(sizes)} student" in printed
    assert "coverage              100.00% of" in printed
    assert "unmapped              1 special, 0 truncated, 0 hole" in printed


def test_groups_that_chain_are_counted():
    """One side has spaces before its words, the other after them: no end of a token is shared."""
    words = 20
    ends = np.arange(2, 2 * words + 1, 2)
    before = np.array(
        [[0, 1], *([end - 1, end + 1] for end in ends[:-1]), [2 * words - 1, 2 * words]]
    )
    after = np.array([[end - 2, end] for end in ends])
    rates = AlignmentRates()
    sides = [
        TokenizedTexts(np.arange(len(spans)), spans, np.array([0, len(spans)]), np.ones(1, bool))
        for spans in (before, after)
    ]
    rates.add(["a " * words], *sides)
    assert (rates.groups, rates.largest_group, rates.in_large_groups) == (1, words + 1, words + 1)


def test_documents_without_a_token_are_named(tokenizers, capsys, tmp_path):
    tokenizers["word-piece"].save(str(tmp_path / "wp.json"))
    tokenizers["byte-level"].save(str(tmp_path / "bl.json"))
    corpus = write_corpus(tmp_path / "c.jsonl", ["a", " ", "b", "\n"])
    printed = result(
        capsys, "overlap", str(tmp_path / "bl.json"), str(tmp_path / "wp.json"), str(corpus)
    )
    assert "no teacher token      2 documents with text: 1, 3" in printed
    assert "2 truncated" in printed


def test_a_corpus_with_a_bad_line(pair, capsys, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\\ud800"}\n')
    assert main(["overlap", *pair, str(path)]) == 2
    assert "c.jsonl, line 2: `text` has a lone surrogate" in capsys.readouterr().err
    path.write_bytes(b"\n")
    assert main(["overlap", *pair, str(path)]) == 2
    assert "the corpus is empty" in capsys.readouterr().err


def test_describe(pair, capsys):
    assert "dummy prefix         a space before every text" in result(capsys, "describe", pair[0])
    assert json.loads(result(capsys, "describe", pair[1], "--json"))["path"] == "ids"


def test_a_reader_that_stops(pair):
    """`vocagno align ... | head -c 1`."""
    command = [sys.executable, "-m", "vocagno", "align", *pair, "word " * 20_000]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1

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
from vocagno.views.statistics import AlignmentRates


@pytest.fixture
def pair(tokenizer_files):
    return [str(tokenizer_files / f"{side}.json") for side in ("student", "teacher")]


def stdin(monkeypatch, data):
    stream = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stream)


def test_align_prints_tokens_reasons_and_mapping_as_json(pair, cli):
    output = json.loads(cli("align", *pair, "😊 x").out)
    assert output["text"] == "😊 x"
    assert output["student"]["tokens"][:5] == ["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x8A>"]
    assert output["student"]["spans"][:5] == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert output["student"]["spans_from"] == output["teacher"]["spans_from"] == "ids"
    assert output["reasons"][:2] == ["special", "mapped"]
    assert output["mapping"][0] == [-1, -1]
    assert output["coverage"] == 1
    assert len(output["mapping"]) == len(output["student"]["ids"]) == sum(output["counts"].values())


def test_a_text_is_the_same_from_a_file_stdin_or_an_argument(pair, cli, monkeypatch, tmp_path):
    """Sees line ends or spaces that are lost on one way, and a text that is read as YAML."""
    for any_text in (" ", "null", "[1, 2]", "yes: no", "-"):  # none is read as YAML
        assert cli.json("align", *pair, any_text)["text"] == any_text
    text = "  a\r\nb\u2028é "
    (tmp_path / "t.txt").write_bytes(text.encode())
    output = cli.json("align", *pair, text)
    assert cli.json("align", *pair, "--file", tmp_path / "t.txt") == output
    for arguments in ([], ["--file", "-"]):
        stdin(monkeypatch, text.encode())
        assert cli.json("align", *pair, *arguments) == output
    assert output["text"] == text


def test_a_text_that_is_the_name_of_a_file(pair, cli, tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("other words")
    printed = cli("align", *pair, path, "--json")
    assert json.loads(printed.out)["text"] == str(path)
    assert "itself as the text; --file reads the file of that name" in printed.err
    for text in ("a" * 5_000, "a\0b", str(tmp_path)):
        assert "warning" not in cli("align", *pair, text, "--json").err


def test_special_tokens_round_the_text(pair, cli):
    output = cli.json("align", *pair, "a b", "--special_tokens")
    assert output["student"]["tokens"][0] == "<s>"
    assert output["student"]["spans"][0] == [0, 0]
    assert output["reasons"][0] == "special"


def test_picture_draws_bytes_and_counts_unmapped_tokens(pair, cli):
    drawn = cli("align", *pair, "😊 x", "--picture").out
    assert "F0│9F│98│8A" in drawn
    assert "×" in drawn
    assert "1 unmapped (1 special). Coverage: 100 %." in drawn


def test_html_writes_a_page_of_escaped_text_without_script(pair, cli, tmp_path):
    page = tmp_path / "p.html"
    assert cli("align", *pair, "a <b>", "--html", page).out == ""
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert "<script" not in html
    assert "&lt;" in html


@pytest.mark.parametrize(
    ("arguments", "piped", "message"),
    [
        (["text", "--file", "x"], b"", "--file: the command line has a text"),
        (["text", "--json", "--picture"], b"", "--json and --picture: choose one"),
        (["a\udcff"], b"", "text: the text is not UTF-8 at byte 1 (0xFF)"),
        ([""], b"", "text: the text is empty; "),
        ([], b"ab\xc3(", "standard input: the text is not UTF-8 at byte 2 (0xC3)"),
        ([], b"", "standard input: the text is empty"),
        ([], None, "standard input is closed; give the text, or --file FILE"),
    ],
)
def test_wrong_arguments_and_texts_that_are_none(pair, cli, monkeypatch, arguments, piped, message):
    if piped is None:
        monkeypatch.setattr(sys, "stdin", None)  # as Python has it after `<&-`
    else:
        stdin(monkeypatch, piped)
    assert message in cli.error("align", *pair, *arguments)


def test_a_text_too_long_to_show_or_to_draw(pair, cli, monkeypatch):
    stdin(monkeypatch, b"a" * 300_000)
    message = cli.error("align", *pair, "--picture")
    assert "the text has 300,000 bytes; at most 200,000 are drawn" in message
    monkeypatch.setattr(alignment, "MOST_BYTES", 1_000)
    stdin(monkeypatch, b"a" * 1_001)
    message = cli.error("align", *pair, "--json")
    assert "standard input: the text has more than 1,000 bytes" in message


def test_overlap_of_vocabularies(pair, cli, tokenizers):
    overlap = cli.json("overlap", *pair)
    left, right = (tokenizers[name].get_vocab() for name in ("llama", "byte-level"))
    shared = overlap["vocabulary"]
    assert shared["shared_strings"] == len(left.keys() & right.keys())
    assert (shared["student_size"], shared["teacher_size"]) == (len(left), len(right))
    assert shared["string_share"] == shared["shared_strings"] / len(right)
    student_pieces, teacher_pieces = (TokenSpans(path).pieces() for path in pair)
    both = (set(student_pieces) & set(teacher_pieces)) - {None}
    shares = shared["student_byte_share"], shared["teacher_byte_share"]
    assert shares[0] == sum(piece in both for piece in student_pieces) / len(left)
    assert shares[1] == sum(piece in both for piece in teacher_pieces) / len(right)
    assert shares[0] > shared["string_share"]  # `▁the` is `Ġthe`
    assert overlap["corpus"] is None
    assert overlap["buckets"]["refused"] is None
    assert 0.99 < overlap["buckets"]["student_share"] <= 1
    printed = cli("overlap", *pair).out
    assert f"shared strings        {shared['shared_strings']:,}, " in printed
    assert f"{shares[1]:.1%} of the teacher's entries, {shares[0]:.1%} of the stu" in printed


def test_overlap_says_whether_a_student_can_be_distilled(pair, cli, tokenizers, tmp_path):
    assert "method: distill       can train this student" in cli("overlap", *pair).out
    tokenizers["word-piece"].save(str(tmp_path / "wp.json"))
    lossy = [pair[0], tmp_path / "wp.json"]
    printed = cli("overlap", *lossy).out
    assert "method: distill       of the ids with text " in printed
    assert cli.json("overlap", *lossy)["buckets"]["refused"] in printed


def test_overlap_on_a_corpus(pair, cli, tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS[:6], "", "∑"])
    rates = cli.json("overlap", *pair, corpus)["corpus"]
    assert rates["documents"] == 8
    assert rates["coverage"] == 1
    assert rates["special"] == 1  # the dummy prefix before ∑
    assert rates["mapped"] == rates["with_text"] == rates["student_tokens"] - rates["special"]
    assert rates["one_to_one"] + rates["one_to_many"] + rates["many_to_one"] == rates["mapped"]
    assert rates["student_proved"] == rates["teacher_proved"] == 8
    student, teacher = (TokenSpans(path) for path in pair)
    groups = [
        oracle.groups(student.encode([text]).spans, teacher.encode([text]).spans)[0]
        for text in [*TEXTS[:6], "∑"]
    ]
    sizes = np.diff(np.concatenate(groups)).ravel().tolist()
    assert (rates["groups"], rates["largest_group"]) == (len(sizes), max(sizes))
    assert rates["in_large_groups"] == 0
    printed = cli("overlap", *pair, corpus).out
    assert f"groups                {len(sizes):,}, the largest of {max(sizes)} student" in printed
    assert "coverage              100.00% of" in printed
    assert "unmapped              1 special, 0 truncated, 0 hole" in printed


def test_groups_that_chain_are_counted():
    """One side has spaces before its words, the other after them: no end of a token is shared."""
    words = 20
    ends = np.arange(2, 2 * words + 1, 2)
    middle = [[end - 1, end + 1] for end in ends[:-1]]
    before = np.array([[0, 1], *middle, [2 * words - 1, 2 * words]])
    after = np.array([[end - 2, end] for end in ends])
    rates = AlignmentRates()
    sides = [
        TokenizedTexts(np.arange(len(spans)), spans, np.array([0, len(spans)]), np.ones(1, bool))
        for spans in (before, after)
    ]
    rates.add(["a " * words], *sides)
    assert (rates.groups, rates.largest_group, rates.in_large_groups) == (1, words + 1, words + 1)


def test_documents_without_a_token_are_named(tokenizers, cli, tmp_path):
    tokenizers["word-piece"].save(str(tmp_path / "wp.json"))
    tokenizers["byte-level"].save(str(tmp_path / "bl.json"))
    corpus = write_corpus(tmp_path / "c.jsonl", ["a", " ", "b", "\n"])
    printed = cli("overlap", tmp_path / "bl.json", tmp_path / "wp.json", corpus).out
    assert "no teacher token      2 documents with text: 1, 3" in printed
    assert "2 truncated" in printed


def test_describe_names_the_dummy_prefix_and_the_path(pair, cli):
    assert "dummy prefix         a space before every text" in cli("describe", pair[0]).out
    assert cli.json("describe", pair[1])["path"] == "ids"


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_without_a_traceback(pair):
    """`vocagno align ... | head -c 1`."""
    command = [sys.executable, "-m", "vocagno", "align", *pair, "word " * 20_000]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1

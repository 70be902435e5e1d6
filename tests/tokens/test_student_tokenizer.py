"""The student's tokenizer with its end-of-document token."""

import json
import re

import pytest

pytest.importorskip("tokenizers")

from vocagno.errors import ConfigError
from vocagno.tokens.student_tokenizer import student_tokenizer


@pytest.fixture
def folder(tmp_path, tokenizers, monkeypatch):
    """One in the home folder, whose pad token is declared as its end."""
    place = tmp_path / "student"
    place.mkdir()
    tokenizers["llama"].save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text('{"eos_token": {"content": "<s>"}}')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return place


def test_a_folder_in_the_home_folder(folder):
    student = student_tokenizer("~/student")
    assert (student.eos, student.source) == ("<s>", str(folder))
    assert student.spans.fingerprint == student_tokenizer(str(folder)).spans.fingerprint


@pytest.mark.parametrize(
    ("declared", "eos", "warns"),
    [("<s>", None, True), ("<s>", "<s>", False), ("</s>", None, False), (None, None, False)],
)
def test_an_end_that_is_not_usual_is_said(folder, capsys, declared, eos, warns):
    """A chat model declares what ends a turn, next to what ends a document."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": declared}))
    student = student_tokenizer(str(folder), eos)
    words = "warning: every document ends in '<s>', which .* declares as its EOS; .* in '</s>'; set"
    assert student.eos == (eos or declared or "</s>")
    assert bool(re.match(words, capsys.readouterr().err)) is warns


def test_an_empty_end_is_not_replaced_by_another(folder):
    with pytest.raises(ConfigError, match=r"student\.eos: '' is not a token of"):
        student_tokenizer(str(folder), "")


@pytest.mark.parametrize(
    "text", ['{"eos_tok', "[1]", '{"eos_token": {}}', '{"eos_token": 2}', "\x80"]
)
def test_a_damaged_file_of_the_folder_is_named(folder, text):
    (folder / "tokenizer_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"student.tokenizer_config\.json: (not|eos_token)"):
        student_tokenizer(str(folder))

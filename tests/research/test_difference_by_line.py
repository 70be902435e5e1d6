"""Where two students differ, by the teacher's loss on a line."""

import pytest

from corpora import write_corpus
from noisy_texts import NOISY, write_line_losses
from research.difference_by_line import bands, main
from vocagno import TokenSpans
from vocagno.errors import InputError

TEXTS = [text for text in NOISY if text]


def test_a_difference_on_noisy_lines_is_found_there(tmp_path, tokenizers, monkeypatch, capsys):
    folders = [tmp_path / name for name in ("teacher", "a", "b")]
    for folder, on_junk in zip(folders, (6.0, 5.0, 5.5), strict=True):
        write_line_losses(folder, tokenizers["byte-level"], TEXTS, on_junk=on_junk)
    shares_and_parts = bands(TEXTS, folders, 2.0)
    share, part = shares_and_parts.pop("noise")
    lines = [line for text in TEXTS for line in text.encode().splitlines(keepends=True)]
    junk = sum(len(line) for line in lines if line[:1] == b"#")
    tokens = TokenSpans(tokenizers["byte-level"]).encode(TEXTS)
    num_tokens = len(tokens.ids) - len(TEXTS)  # the first one of each text has no loss
    first_of_junk = 1  # the document that begins with junk has no loss there
    assert part == pytest.approx(0.5 * (junk - first_of_junk) / num_tokens, rel=2e-3)
    assert 0 < share < 1
    assert share + sum(share for share, _ in shares_and_parts.values()) == pytest.approx(1)
    assert {part for _, part in shares_and_parts.values()} == {0}
    text = write_corpus(tmp_path / "t.jsonl", TEXTS)
    monkeypatch.setattr("sys.argv", ["x", str(text), *map(str, folders)])
    main()
    assert f"| all | 100% | {part:+.4f} |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["x", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()


def test_a_text_that_a_store_lacks_is_named(tmp_path, tokenizers):
    """A document without scores would be left out of the difference."""
    folders = [tmp_path / name for name in ("teacher", "a", "b")]
    for folder in folders:
        write_line_losses(folder, tokenizers["byte-level"], TEXTS)
    write_line_losses(tmp_path / "part", tokenizers["byte-level"], TEXTS[1:])
    for index in range(3):
        stores = [*folders[:index], tmp_path / "part", *folders[index + 1 :]]
        with pytest.raises(InputError, match=r"part: has no scores of .*: not scored"):
            bands(TEXTS, stores)


def test_students_with_other_tokens_are_refused(tmp_path, tokenizers):
    for folder, name in (("a", "byte-level"), ("b", "llama")):
        write_line_losses(tmp_path / folder, tokenizers[name], TEXTS)
    with pytest.raises(InputError, match="has other tokens than"):
        bands(TEXTS, [tmp_path / "a", tmp_path / "a", tmp_path / "b"], 2.0)

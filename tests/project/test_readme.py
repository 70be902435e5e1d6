"""What the README shows runs, and what it names exists."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_example_runs_with_nothing_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(list(filter(None, code.splitlines()))) == 10
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].split() == ["'ability'", "['Probability']", "1.2"]
    assert printed[5] == f"{'certain'!r:10} {[' Unc', 'ertainty']!s:24} 2.6"
    assert len(printed) == 7


def test_targets_and_files_that_the_readme_names_exist():
    root = README.parent
    for target in re.findall(r"^    make ([a-z-]+)", TEXT, re.MULTILINE):
        assert f"\n{target}:" in (root / "Makefile").read_text()
    for name in re.findall(r"configs/[a-z-]+\.yaml", TEXT):
        assert (root / name).is_file(), name
    package = root / "python" / "vocagno"
    for name in re.findall(r"`([a-z_/]+\.py)`", TEXT):
        places = (root / name, package / name, package / "training" / name)
        assert any(place.is_file() for place in places), name


def words_of_prose(page):
    """Words outside code, tables and addresses of links."""
    text = re.sub(r"^ *```.*?^ *```|^    .*?$|^\|.*?$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)|`[^`]*`", "", text)
    return [word for word in text.split() if re.search(r"[a-z]", word, re.IGNORECASE)]


def test_the_readme_is_read_in_minutes_and_the_docs_in_an_hour():
    pages = [*(README.parent / "docs").glob("*.md")]
    words = {page.name: len(words_of_prose(page.read_text(encoding="utf-8"))) for page in pages}
    assert len(TEXT.splitlines()) <= 110
    assert len(words_of_prose(TEXT)) <= 650
    assert len(words) > 15
    assert sum(words.values()) <= 11_000, words
    assert max(words.values()) <= 1_900, words  # that with the proofs

"""What the README shows runs, and what it names exists."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    from vocagno.quickstart.problems import documents
    from vocagno.quickstart.tokenizers import train_tokenizers

    texts = [document["text"] for document in documents(0, 300, 0.3)]
    train_tokenizers(texts, tmp_path / "runs" / "quickstart" / "tokenizers")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(scope["kept"]) > 5
    student, mapping = scope["student"], scope["mapping"]
    with_text = student.spans[:, 0] < student.spans[:, 1]
    assert (mapping[with_text] >= 0).all()


def test_what_it_names_exists():
    root = README.parent
    for target in re.findall(r"^    make ([a-z-]+)", TEXT, re.MULTILINE):
        assert f"\n{target}:" in (root / "Makefile").read_text()
    for name in re.findall(r"configs/[a-z-]+\.yaml", TEXT):
        assert (root / name).is_file(), name
    package = root / "python" / "vocagno"
    for name in re.findall(r"`([a-z_/]+\.py)`", TEXT):
        places = (root / name, package / name, package / "training" / name)
        assert any(place.is_file() for place in places), name

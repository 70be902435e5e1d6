"""`examples/vocagno.ipynb`, cell by cell, with few documents and steps."""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from small_quickstart import cut_down

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "vocagno.ipynb"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the configurations, cut down; the notebook is started in `examples`."""
    sizes = {"TRAIN_DOCUMENTS": 100, "TEACHER_DOCUMENTS": 60, "VALID_DOCUMENTS": 10}
    cut_down(monkeypatch, tmp_path / "cut-down", ("teacher", "guided"), **sizes)
    (tmp_path / "configs").mkdir()
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    display = ModuleType("IPython.display")
    display.HTML = lambda page: page
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return tmp_path


def shown(source, scope, monkeypatch):
    """Runs a cell; the value of its last expression, which Jupyter shows."""
    lines = [line.replace("%cd ..", "chdir('..')") for line in source]
    scope["chdir"] = monkeypatch.chdir
    tree = ast.parse("".join(lines))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return last and eval(compile(ast.Expression(last.value), "cell", "eval"), scope)


def test_every_cell_runs_and_shows_what_the_text_says(project, monkeypatch, capsys):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    scope, outputs = {}, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # none is kept
            outputs.append(shown(cell["source"], scope, monkeypatch))
    alignment, mapping, guided, page = [output for output in outputs if output is not None]
    assert "data-student" in alignment._repr_html_()
    assert len(mapping) == 8
    assert "How to read this" in guided._repr_html_()
    assert "What the teacher chose" in page
    assert len([line for line in capsys.readouterr().out.splitlines() if line[:1] in "'\""]) == 8
    assert (project / "runs" / "notebook" / "final" / "model.safetensors").is_file()


def test_every_link_of_the_notebook_leads_to_a_file():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
    assert targets
    assert all((NOTEBOOK.parent / target).is_file() for target in targets)

"""`import vocagno` costs NumPy alone."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import write_corpus
from families import TEXTS
from imports import modules_after

HEAVY = ("torch", "transformers", "tokenizers", "accelerate", "pyarrow", "jsonargparse", "tqdm")


@pytest.mark.slow
def test_aligning_needs_numpy_alone():
    statement = (
        "import vocagno; m = vocagno.align([[0, 2]], [[0, 1], [1, 2]]); "
        "vocagno.reduce([1.0, 2.0], m); vocagno.unmapped_reasons([[0, 2]], [[0, 1], [1, 2]], m); "
        "vocagno.overlap([[0, 2]], [[0, 1], [1, 2]], m); vocagno.chunk_map(1, 2, 1); "
        "vocagno.groups([[0, 2]], [[0, 1], [1, 2]])"
    )
    added = modules_after(statement) - modules_after("import numpy")
    third_party = {name for name in added if name not in sys.stdlib_module_names}
    assert {name for name in third_party if not name.startswith("_")} == {"vocagno"}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["guidance", "teacher"])
def test_a_package_imports_torch_with_the_first_name_that_needs_it(package):
    pytest.importorskip("torch")
    door = importlib.import_module(f"vocagno.{package}")
    for name in door.__all__:
        alias = {"GuidanceTensors": "GuidedBatch"}
        assert getattr(door, name).__name__ == alias.get(name, name)
    with pytest.raises(AttributeError, match=f"'vocagno.{package}' has no attribute 'nothing'"):
        door.nothing  # noqa: B018
    assert not modules_after(f"import vocagno.{package}") & set(HEAVY)
    light = "GuidanceConfig" if package == "guidance" else "TextReader"
    assert "torch" not in modules_after(f"from vocagno.{package} import {light}")


ONLY_TORCH = """
import importlib.metadata, sys
import torch
allowed = {"torch", "numpy", "vocagno"} | {name.split(".")[0] for name in sys.modules}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FOREIGN - allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
FOREIGN = set(importlib.metadata.packages_distributions())
sys.meta_path.insert(0, Refuse())
from vocagno.guidance import GuidanceConfig, language_head, selective_cross_entropy, token_weights
torch.manual_seed(0)
hidden, head = torch.randn(2, 8, 16, requires_grad=True), torch.randn(32, 16)
labels, teacher_loss = torch.randint(32, (2, 8)), torch.rand(2, 8)
for guidance in (GuidanceConfig(top_fraction=0.4), GuidanceConfig(method="cpt")):
    given = hidden, head, labels, teacher_loss, guidance
    loss, _ = selective_cross_entropy(*given, reduction="mean")
    loss.backward()
    print(float(loss))
"""


@pytest.mark.slow
def test_the_loss_needs_torch_and_numpy_alone():
    """What `vocagno[torch]` promises: every other package that is installed is refused."""
    pytest.importorskip("torch")
    words = [sys.executable, "-c", ONLY_TORCH]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert all(0 < float(loss) < 100 for loss in process.stdout.split())
    assert len(process.stdout.split()) == 2


WITHOUT_TRAINING = """
import sys
from pathlib import Path
for name in ("torch", "transformers", "accelerate", "datasets"):
    sys.modules[name] = None  # as if it were not there
from vocagno.cli.app import main
sys.exit(main())
"""


@pytest.mark.slow
def test_rows_and_stores_need_no_torch(tmp_path, tokenizer_files, teacher_model):
    """What `vocagno[data]` promises."""
    pytest.importorskip("torch")
    from vocagno.cli.app import main

    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    teacher = ["--teacher.model", str(teacher_model), "--cache", str(tmp_path / "cache")]
    assert main(["score", str(corpus), "--out", str(tmp_path / "scores"), *teacher]) == 0

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_TRAINING, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )

    student = ["--tokenizer", tokenizer_files / "student.json", "--eos", "</s>", "--out", "rows"]
    for command in (
        ["prepare", corpus, *student],
        ["scores", "info", "scores"],
        ["scores", "verify", "scores"],
        ["scores", "export", "scores", "--out", "parquet"],
        ["scores", "import", "parquet", "--out", "again"],
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    refused = run("score", corpus, *teacher)
    assert refused.returncode == 2
    assert "pip install '.[train]'" in refused.stderr


def test_no_test_imports_another_test_file():
    tests = Path(__file__).parents[1]
    imports = [
        f"{path.relative_to(tests)}: {line}"
        for path in tests.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) (test_|conftest)", line)
    ]
    assert imports == []


@pytest.mark.parametrize(
    ("package", "module", "name", "lacks"),
    [
        ("vocagno.guidance", "selective", "selective_cross_entropy", "torch"),
        ("vocagno.teacher", "score_store", "ScoreStore", "pyarrow"),
    ],
)
def test_a_name_that_needs_an_extra_says_which(monkeypatch, package, module, name, lacks):
    door = importlib.import_module(package)
    monkeypatch.delitem(sys.modules, f"{package}.{module}", raising=False)
    monkeypatch.setitem(sys.modules, lacks, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError) as caught:
        getattr(door, name)
    assert str(caught.value) == f"{package}.{name} needs {lacks}: pip install '.[train]'"

"""What SECURITY.md promises: no pickle, no evaluation of text, no code from model folders."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "python").rglob("*.py"), ROOT / "train.py"])
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}


def names(tree):
    """Imported modules, called names, attributes and keyword arguments of a source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (("import", alias.name.split(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "import", (node.module or "").split(".")[0], None
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            yield "call", called, {word.arg: ast.unparse(word.value) for word in node.keywords}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_source_reads_code(path):
    for kind, name, words in names(ast.parse(path.read_text("utf-8"))):
        if kind == "import":
            assert name not in MODULES, f"{path}: {name}"
            continue
        assert name not in CALLS, f"{path}: {name}(...)"
        assert name != "os.system"
        assert words.get("shell") != "True"
        assert name not in ("yaml.load", "yaml.unsafe_load", "numpy.load"), path
        assert name != "np.load" or words.get("allow_pickle") == "False", path
        assert name != "torch.load" or words.get("weights_only") == "True", path
        assert words.get("trust_remote_code", "False") == "False", path


def test_weights_in_pickles_are_refused(tmp_path, teacher_model):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from vocagno.config.options import StudentConfig
    from vocagno.config.teacher import TeacherConfig
    from vocagno.errors import InputError
    from vocagno.evaluation.running import load
    from vocagno.models.loading import load_student, load_teacher, student_settings

    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((teacher_model / file).read_bytes())
    torch.save(load_file(teacher_model / "model.safetensors"), tmp_path / "pytorch_model.bin")
    teacher = TeacherConfig(model=str(tmp_path))
    with pytest.raises(InputError, match="safetensors"):
        load_teacher(teacher, torch.device("cpu"))
    student = StudentConfig(model=str(tmp_path))
    with pytest.raises(InputError, match="safetensors"):
        load_student(student, student_settings(student, 10, 8), 0)
    pytest.importorskip("lm_eval")
    with pytest.raises(InputError, match="safetensors"):
        load(str(tmp_path), dtype="float32", device="cpu", gguf_file=None, batch_size=1)

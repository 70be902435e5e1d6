"""`import vocagno` costs NumPy alone."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "tokenizers", "accelerate", "pyarrow", "jsonargparse", "tqdm")


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    return {name.split(".")[0] for name in output.split()}


def test_import_loads_numpy_and_nothing_else():
    added = modules_after("import vocagno") - modules_after("import numpy")
    third_party = {name for name in added if name not in sys.stdlib_module_names}
    assert {name for name in third_party if not name.startswith("_")} <= {"vocagno"}
    assert not added & set(HEAVY)


def test_aligning_needs_numpy_alone():
    statement = (
        "import vocagno; m = vocagno.align([[0, 2]], [[0, 1], [1, 2]]); "
        "vocagno.reduce([1.0, 2.0], m); vocagno.unmapped_reasons([[0, 2]], [[0, 1], [1, 2]], m); "
        "vocagno.overlap([[0, 2]], [[0, 1], [1, 2]], m); vocagno.chunk_map(1, 2, 1); "
        "vocagno.groups([[0, 2]], [[0, 1], [1, 2]])"
    )
    assert not modules_after(statement) & set(HEAVY)


def test_version_is_that_of_the_package():
    from importlib.metadata import version

    import vocagno

    assert vocagno.__version__ == version("vocagno")

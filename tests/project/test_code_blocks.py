"""Every code block of the documentation, in a folder in which the names that it uses exist.

Python runs, page by page, as one program; commands run in bash as they stand. What would take
hours, a network or GPUs is caught before it starts, and its options are read instead (`CAUGHT`).
"""

import ast
import doctest
import gzip
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import yaml

from corpora import write_corpus
from evaluation_data import write_benchmarks
from families import TEXTS
from run_folders import CONFIG, training, validation, write_run
from runs import environment
from skypilot import read_task
from slurm import write_program, write_slurm
from tiny_models import save_llama
from warm_python import executable

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("lm_eval")

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benches").rglob("*.md")),
    *sorted((ROOT / "configs").rglob("*.md")),
]
PROGRAMS = (
    "vocagno",
    "accelerate",
    "python",
    "make",
    "pip",
    "sbatch",
    "sky",
    "docker",
    ".",
    "RUN=",
)
BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>(?:.*\n)*?)```$|"
    r"(?<=\n\n)(?P<indented>(?:    .*\n|\n(?=    ))+)",
    re.MULTILINE,
)
FEW = (
    "--train.steps 2 --train.global_batch 2 --train.micro_batch 2 --optimizer.warmup_steps 0 "
    "--data.seq_len"
)
"""Options behind a training run that a page starts; then the length of its rows."""
CAUGHT = {
    "make": ("*", ""),  # hours, or a network; CI runs them
    "pip": ("*", ""),
    "vocagno": (
        "*--fetch*|*gguf*|*configs/recipes/*|*--teacher.server*|*--teacher.engine*|*s3://*",
        "{python} -m vocagno",
    ),
    "accelerate": (
        "*--config_file*|*--num_processes*|*--push_to_hub*|*s3://*",  # GPUs, machines, a hub
        "{python} -m accelerate.commands.accelerate_cli",
    ),
    "torchrun": ("*", ""),  # several machines
    "sky": ("*", ""),  # tests/project/test_clusters.py runs its task
    "docker": ("*", ""),  # a daemon, and a network
    "python": (
        # A report says what was run. The hub: tests/project/test_recipes.py runs recipes.
        "benches/*|*trl_gold*|*real-text*|*research.study*|*recipes/take.py*",
        "{python}",
    ),
}
"""Of each program: with which arguments (a pattern of bash) it is not run, and how it is else."""


def blocks(page):
    """(kind, text) of each code block: a language, `commands` or `shown`."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["fenced"] is not None:
            yield match["language"], match["fenced"]
            continue
        text = "".join(line[4:] or "\n" for line in match["indented"].splitlines(keepends=True))
        yield ("commands" if text.startswith(PROGRAMS) else "shown"), text


WITH_CODE = [page for page in PAGES if any(blocks(page))]


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizers):
    """What the pages speak of: corpora, tokenizers, models, runs, and the project's own files."""
    from vocagno.quickstart.problems import documents
    from vocagno.quickstart.tokenizers import train_tokenizers

    folder = tmp_path_factory.mktemp("pages")
    for name in ("configs", "examples", "docs", "research"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "train.py", folder)
    for page in PAGES:
        for kind, text in blocks(page):
            if kind == "yaml" and "student:" in text:
                (folder / "my.yaml").write_text(text, encoding="utf-8")
    _write_corpora(folder)
    _write_runs(folder / "runs")
    for name, family in (
        ("tinyllama", "llama"),
        ("qwen2.5", "byte-level-nfc"),
        ("llama-3", "byte-level"),
        ("mistral-v0.1", "metaspace-first"),
        ("deepseek-llm", "byte-level-trimmed"),
    ):
        text = tokenizers[family].to_str().encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text))
    tokenizers["llama"].save(str(folder / "tokenizer.json"))
    quickstart = folder / "runs" / "quickstart"
    texts = [document["text"] for document in documents(0, 300, 0.3)]
    train_tokenizers(texts, quickstart / "tokenizers")
    (quickstart / "corpus").mkdir()
    write_corpus(quickstart / "corpus" / "train.jsonl", texts)
    from tokenizers import Tokenizer

    sides = {
        side: Tokenizer.from_file(str(quickstart / "tokenizers" / side / "tokenizer.json"))
        for side in ("student", "teacher")
    }
    for name, tokenizer, context in (
        ("STUDENT", tokenizers["llama"], 2048),
        ("TEACHER", tokenizers["byte-level"], 2048),
        ("TinyLlama", tokenizers["llama"], 2048),
        ("MODEL", tokenizers["byte-level"], 512),  # no room for long answers
        ("runs/guided/final", tokenizers["byte-level"], 512),
        ("runs/quickstart/naive/final", sides["student"], 256),
        ("runs/quickstart/teacher/final", sides["teacher"], 256),
    ):
        _write_model(folder / name, tokenizer, context)
    write_benchmarks(folder / "FOLDER")
    item = {"idx": 0, "completion": "The answer is 2."}
    (folder / "FILE").write_text(json.dumps(item) + "\n")
    return folder


def _write_corpora(folder):
    for name in ("corpus.jsonl", "train.jsonl", "valid.jsonl", "slice.jsonl"):
        write_corpus(folder / name, [*TEXTS, "\n".join(TEXTS * 8)] * 2)
    text = (folder / "corpus.jsonl").read_bytes()
    for name in ("corpus.jsonl.gz", "math.jsonl.gz"):
        (folder / name).write_bytes(gzip.compress(text))
    import pyarrow as pa

    with pa.CompressedOutputStream(str(folder / "corpus.jsonl.zst"), "zstd") as file:
        file.write(text)
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.jsonl").write_bytes(text)


def _write_model(folder, tokenizer, context):
    save_llama(folder, tokenizer, seed=1, max_position_embeddings=context)
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    if tokenizer.token_to_id("</s>") is None:
        special["eos_token"] = "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def _write_runs(folder):
    for name, share in (("naive", 1.0), ("guided", 0.4)):
        config = json.loads(json.dumps(CONFIG))
        config["guidance"]["top_fraction"] = share
        run = write_run(folder / name, training(4, 4.0), validation(4, 3.0 + share))
        (run / "config.yaml").write_text(yaml.safe_dump(config))


def _catch(folder):
    """Programs in front of the real ones on the path."""
    folder.mkdir()
    record = folder / "record.py"
    record.write_text(
        "import json, pathlib, sys\n"
        "with pathlib.Path(__file__).with_name('caught').open('a') as file:\n"
        "    print(json.dumps(sys.argv[1:]), file=file)\n"
    )
    for name, (pattern, command) in CAUGHT.items():
        real = command.format(python=executable())
        lines = [
            "#!/bin/bash",
            f'case "$*" in {pattern}) exec {sys.executable} {record} {name} "$@";; esac',
            f'case "$*" in *--data.rows*) exec {real} "$@" {FEW} 512;; esac',
            f'case "$*" in *train.py*|"train "*) exec {real} "$@" {FEW} 64;; esac',
            f'exec {real} "$@"',
        ]
        write_program(folder / name, "\n".join(lines if real else lines[:2]) + "\n")
    write_slurm(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for bash")
@pytest.mark.parametrize("page", WITH_CODE, ids=[str(p.relative_to(ROOT)) for p in WITH_CODE])
def test_the_code_of_a_page_runs(page, base, tmp_path, monkeypatch):
    place = tmp_path / "place"
    shutil.copytree(base, place)
    _catch(place / "bin")
    (place / ".venv" / "bin").mkdir(parents=True)
    (place / ".venv" / "bin" / "activate").touch()
    monkeypatch.chdir(place)
    scope = {"__name__": page.stem}
    for number, (kind, text) in enumerate(blocks(page), 1):
        where = f"{page.relative_to(ROOT)}, block {number}"
        RUNNERS[kind](text, where, scope, place)


def _python(text, where, scope, _):
    code = compile(text, where, "exec")
    if "\nimport ray\n" in text:  # no extra brings Ray; tests/teacher/test_ray.py runs it
        return _check_imports(text)
    exec(code, scope)


def _check_imports(text):
    """What it takes from vocagno is there."""
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    names = [(node.module, name.name) for node in imports for name in node.names]
    for module, name in names:
        pkgutil.resolve_name(f"{module}:{name}")
    assert any(module.startswith("vocagno.") for module, _ in names)


def _doctest(text, where, scope, _):
    test = doctest.DocTestParser().get_doctest(text, scope, where, where, 0)
    runner = doctest.DocTestRunner()
    assert runner.run(test, clear_globs=False, out=print).failed == 0
    scope.update(test.globs)


def _commands(text, where, _, place):
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    ran = subprocess.run(
        ["bash", "-euc", text],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        env=environment(PATH=path, LC_ALL="C.UTF-8", COLUMNS="120"),
    )
    assert ran.returncode == 0, f"{where}\n{text}\n{ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
    caught = place / "bin" / "caught"
    if caught.exists():
        for line in caught.read_text().splitlines():
            program, *arguments = json.loads(line)
            READ[program](arguments)
        caught.unlink()


def _yaml(text, *_):
    from vocagno.config.options import Config

    options = yaml.safe_load(text)
    if "student" not in options:  # else it is a file that commands take
        sections = get_type_hints(Config)
        for name, values in options.items():
            sections[name](**values)


def _shown(text, where, *_):
    """What is no command: the hard strings (tests/project/test_docs.py), and one table."""
    assert text.startswith("$ ") or "held-out loss  nats a byte  exact answers" in text, (
        f"{where}\n{text}"
    )


RUNNERS = {
    "python": _python,
    "pycon": _doctest,
    "commands": _commands,
    "yaml": _yaml,
    "shown": _shown,
}


def _read_make(arguments):
    assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()


def _read_pip(arguments):
    pyproject = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"\w+", "".join(re.findall(r"\[(.*)\]", arguments[-1]))):
        assert re.search(rf"^{extra} = \[", pyproject, re.MULTILINE), extra


def _read_vocagno(arguments):
    from vocagno.cli.app import main

    name, words = main.split(arguments)
    main.commands[name].read_options(name, words)


def _read_accelerate(arguments):
    if "--config_file" in arguments:
        file = Path(arguments[arguments.index("--config_file") + 1])
        assert yaml.safe_load(file.read_text())["num_processes"]
    if "train.py" in arguments:
        from vocagno.training.configuration import parse

        parse(arguments[arguments.index("train.py") + 1 :])
    else:
        _read_vocagno(arguments[arguments.index("vocagno") + 1 :])


def _read_python(arguments):
    if arguments[:2] == ["-m", "research.study"]:
        from research.study.__main__ import add_study
        from vocagno.config.arguments import Command

        return Command(add_study, print).read_options("research.study", arguments[2:])
    if arguments[0] == "train.py":
        _read_accelerate(arguments)
    assert (ROOT / arguments[0]).is_file()


def _read_sky(arguments):
    """`launch [-c NAME] FILE --env NAME=VALUE ...`"""
    (path,) = (argument for argument in arguments if argument.endswith(".yaml"))
    settings = [setting for name, setting in pairwise(arguments) if name == "--env"]
    read_task(Path(path), dict(setting.split("=") for setting in settings))


def _read_docker(arguments):
    """`build ... .`, or `run ... vocagno ARGUMENTS`"""
    if arguments[0] == "run":
        return _read_vocagno(arguments[arguments.index("vocagno") + 1 :])
    assert arguments[0] == "build"
    assert (ROOT / arguments[-1] / "Dockerfile").is_file()


READ = {
    "docker": _read_docker,
    "sky": _read_sky,
    "torchrun": _read_accelerate,
    "make": _read_make,
    "pip": _read_pip,
    "vocagno": _read_vocagno,
    "accelerate": _read_accelerate,
    "python": _read_python,
}


def _docstrings():
    """Of all that the reference shows, by name."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", "\n".join(p.read_text() for p in pages), re.MULTILINE):
        documented = pkgutil.resolve_name(name)
        yield name, inspect.getdoc(documented)
        for member, value in vars(documented).items() if hasattr(documented, "__dict__") else ():
            if getattr(value, "__module__", None) == getattr(documented, "__module__", name):
                yield f"{name}.{member}", inspect.getdoc(value)


def test_the_code_of_the_reference_runs(tokenizers):
    import vocagno

    small, large = (vocagno.TokenSpans(tokenizers[name]) for name in ("llama", "byte-level"))
    student, teacher = small.encode(TEXTS[:1]), large.encode(TEXTS[:1])
    student_nll, teacher_nll = (np.ones(len(tokens.ids)) for tokens in (student, teacher))
    ran = set()
    for name, text in _docstrings():
        for match in BLOCK.finditer(f"{text}\n"):
            scope = {
                "vocagno": vocagno,
                "texts": TEXTS[:1],
                "student": student,
                "teacher": teacher,
                "student_nll": student_nll,
                "teacher_nll": teacher_nll,
                **{"small": small, "ids": student.ids, "logprobs": -student_nll},
                **{"large": large, "other_ids": teacher.ids, "other_logprobs": -teacher_nll},
            }
            code = inspect.cleandoc(match["indented"] or match["fenced"])
            exec(compile(code, name, "exec"), scope)
            ran.add(name)
    assert ran == {"vocagno.groups", "vocagno.credit", "vocagno.guidance.text_batches.guided_batch"}


def test_no_block_is_overlooked():
    """As many fences and indented lines as a plain count finds."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        codes = [(kind in ("commands", "shown"), code) for kind, code in blocks(page)]
        lines = [line for is_indented, code in codes if is_indented for line in code.splitlines()]
        assert sum(not is_indented for is_indented, _ in codes) == len(
            re.findall(r"^```\w", text, re.MULTILINE)
        ), page
        assert len(list(filter(None, lines))) == len(re.findall(r"^    ", outside, re.MULTILINE)), (
            page
        )

"""Sizes of the project, directions of its imports and words of its names and docstrings, each with
its bound: `python .ci/house.py`.

A bound is what the project has reached, not what it may grow to: a change that needs more of one
takes it away elsewhere, and one that needs less lowers it. `make lint` runs this. Lines of code are
lines that hold code: docstrings, comments and blank lines are free, so that nobody writes a terser
sentence to stay below a bound.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).parents[1]
BOUNDS = {
    "lines of code of python/vocagno": 22_722,
    "modules of python/vocagno": 151,
    "lines of code of research": 2_500,
    "lines of code of tests": 27_999,
    "lines of code of benches": 4_670,
    "modules of the largest folder": 13,
    "modules in circles of imports": 0,
    "project files of a training step": 25,
    "names that say nothing": 8,
    "functions named by a participle": 1,
    "docstrings that begin as a fragment": 1,
    "docstrings that say 'as `x`'": 15,
}
AT_LEAST = {"comment lines of python/vocagno": 900}
EMPTY_NAMES = frozenset(
    "behind each found given known mine more one others ours own said theirs told wanted what "
    "why".split()
)
"""Names that say nothing of the value that they are bound to."""
NAMED = "python/vocagno", "research", "tests", "benches", "examples", ".ci"
"""Folders whose names are counted."""
PARTICIPLE = re.compile(
    r"_?([a-z]+ed|chosen|cut|dealt|drawn|found|given|kept|known|made|read|said|shown|told)"
)
"""The names of functions that should be verbs, or the noun that they return."""
FRAGMENT = re.compile(r"(Of|As|That of|Those|The same|In place|How|Whether|Where|Which|What)\b")
"""How a docstring begins that needs the name above it to be a sentence."""


NO_CODE = frozenset(
    getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()
)
"""Tokens that stand on a line without making it a line of code."""


def files(folder: str) -> list[str]:
    """Those that git knows, or would add."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"{folder}/**.py"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def lines_of_code(folder: str) -> int:
    """Counts the lines of a folder that hold code, docstrings and comments aside."""
    total = 0
    for name in files(folder):
        source = (ROOT / name).read_text(encoding="utf-8")
        rows: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in NO_CODE:
                rows.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(ast.parse(source)):
            for statement, _ in docstrings(node):
                rows.difference_update(range(statement.lineno, (statement.end_lineno or 0) + 1))
        total += len(rows)
    return total


def circles(graph: grimp.ImportGraph) -> Iterator[str]:
    """The modules from which a chain of imports leads back, imports for types included.

    `from vocagno import _vocagno` takes what is compiled, and counts as no import of the package.
    """
    for importer in graph.find_modules_that_directly_import("vocagno"):
        arrow = {"importer": importer, "imported": "vocagno"}
        if all("_vocagno" in line["line_contents"] for line in graph.get_import_details(**arrow)):
            graph.remove_import(**arrow)
    for module in graph.modules:
        imports = graph.find_modules_directly_imported_by(module)
        if any(graph.chain_exists(importer=name, imported=module) for name in imports):
            yield module


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a statement, a loop, a comprehension or a parameter gives to values."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.For | ast.NamedExpr | ast.comprehension):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    elif isinstance(node, ast.arg):
        yield node.arg
    for target in targets:
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def docstrings(node: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yields the strings that stand by themselves in a body, after attributes too, and their
    statements."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield statement, value.value.strip()


def words(folder: str) -> dict[str, int]:
    """Counts of names, docstrings and comments that a stranger stumbles over, or needs."""
    counts: Counter[str] = Counter()
    for name in files(folder):
        source = (ROOT / name).read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        rows = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        counts[f"comment lines of {folder}"] += len(rows)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_participle = PARTICIPLE.fullmatch(node.name) is not None
                counts["functions named by a participle"] += is_participle
            for _, text in docstrings(node):
                counts["docstrings that begin as a fragment"] += bool(FRAGMENT.match(text))
                counts["docstrings that say 'as `x`'"] += len(re.findall(r"\b[Aa]s `", text))
    return dict(counts)


def empty_names(folder: str) -> int:
    """Counts the names that are bound to values of which they say nothing."""
    trees = (ast.parse((ROOT / name).read_text(encoding="utf-8")) for name in files(folder))
    names = (name for tree in trees for node in ast.walk(tree) for name in bound_names(node))
    return sum(map(EMPTY_NAMES.__contains__, names))


def step_files() -> list[str]:
    command = [sys.executable, str(ROOT / ".ci" / "step_files.py")]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()


def measured() -> dict[str, int]:
    """Each figure that has a bound."""
    modules = files("python/vocagno")
    folders = Counter(
        str(PurePosixPath(name).parent) for name in modules if not name.endswith("/__init__.py")
    )
    graph = grimp.build_graph("vocagno", exclude_type_checking_imports=False, cache_dir=None)
    return {
        "lines of code of python/vocagno": lines_of_code("python/vocagno"),
        "modules of python/vocagno": len(modules),
        "lines of code of research": lines_of_code("research"),
        "lines of code of tests": lines_of_code("tests"),
        "lines of code of benches": lines_of_code("benches"),
        "modules of the largest folder": max(folders.values()),
        "modules in circles of imports": len(list(circles(graph))),
        "project files of a training step": len(step_files()),
        "names that say nothing": sum(map(empty_names, NAMED)),
        **words("python/vocagno"),
    }


def main() -> int:
    broken = False
    for name, value in measured().items():
        is_least = name in AT_LEAST
        bound = AT_LEAST[name] if is_least else BOUNDS[name]
        is_broken = value < bound if is_least else value > bound
        outcome = f" {'under' if is_least else 'over'} its bound" if is_broken else ""
        print(f"{name:40}{value:>8,} of {'at least ' if is_least else ''}{bound:,}{outcome}")
        broken |= is_broken
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

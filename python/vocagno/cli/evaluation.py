"""`vocagno eval`: mathematical benchmarks, graded as the paper graded them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError, require
from vocagno.system.progress import Progress, in_table
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from vocagno.evaluation.benchmarks import Benchmark, Completion, Item
    from vocagno.evaluation.summary import Measured

_TAKES = {
    "a model": ("tasks", "limit", "out", "batch_size", "dtype", "device", "gguf_file"),
    "--regrade": ("task", "items", "limit"),
    "--fetch": ("tasks",),
}
"""Options of the three forms of the command, in addition to --data and --json."""


def add_eval(parser: Any) -> None:
    """Grade a model on mathematical benchmarks, as the paper does and by math-verify.

    Each question follows worked examples. Every answer is kept in --out at once, so a killed
    evaluation resumes. Further tasks add to the results there. --regrade grades completions in a
    file, without a model.
    """
    parser.add_argument("model", type=str, nargs="?", help="a folder, or a name on the hub")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder of NAME/test.jsonl, plain or .gz, and prompts/cot/NAME.md",
    )
    parser.add_argument(
        "--tasks", type=str, nargs="+", metavar="NAME", help="default: the ten of the paper"
    )
    parser.add_argument("--limit", type=int, help="items of each benchmark; default: all")
    parser.add_argument(
        "--out", type=Path, help="folder for the answers; default: eval/MODEL in the current one"
    )
    parser.add_argument("--batch_size", type=int, help="prompts at a time; default: 8")
    parser.add_argument("--dtype", type=str, help="as bfloat16; default: auto")
    parser.add_argument("--device", type=str, help="default: cuda, if there is one")
    parser.add_argument("--gguf_file", type=str, help="weights, in the folder of the model")
    parser.add_argument(
        "--regrade", type=Path, metavar="FILE", help="JSON Lines of `idx` and `completion`"
    )
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="only download the questions of --tasks that the hub has, into --data",
    )
    parser.add_argument("--task", type=str, metavar="NAME", help="--regrade: the benchmark")
    parser.add_argument("--items", type=Path, help="--regrade: file to write, a verdict a line")


def eval_(options: Any) -> dict[str, Any] | None:
    """Evaluates or grades; the scores as data, or a table of them."""
    if options.fetch:
        form, run = "--fetch", _fetched
    elif options.regrade is not None:
        form, run = "--regrade", _regraded
    else:
        require(options.model is not None, "expected a model, or --regrade FILE")
        form, run = "a model", _evaluated
    _check_form(options, form)
    for name, what in (("limit", "at least 1 item"), ("batch_size", "at least 1")):
        given = options[name]
        require(given is None or given > 0, f"--{name}: expected {what}, got {given}")
    return run(options)


def _check_form(options: Any, form: str) -> None:
    """Raises: InputError for an option that another form of the command takes."""
    names = dict.fromkeys(name for names in _TAKES.values() for name in names)
    wrong = [name for name in names if name not in _TAKES[form] and options[name] is not None]
    if wrong:
        given, taken = (", ".join(f"--{name}" for name in some) for some in (wrong, _TAKES[form]))
        raise InputError(f"{given}: no option of `vocagno eval` with {form}, which takes {taken}")


def _fetched(options: Any) -> dict[str, Any] | None:
    """Counts of items by benchmark."""
    from vocagno.evaluation.benchmarks import SOURCES, fetch, find_benchmark

    if options.model is not None or options.regrade is not None:
        raise InputError("--fetch goes with no model and no --regrade")
    counts = {}
    for benchmark in map(find_benchmark, options.tasks or SOURCES):
        path, counts[benchmark.name] = fetch(benchmark, options.data)
        print(f"{path}: {counts[benchmark.name]:,} items", file=sys.stderr)
    return counts if options.json else None


def _evaluated(options: Any) -> dict[str, Any] | None:
    from filelock import FileLock, Timeout

    from vocagno.evaluation.benchmarks import PAPER, find_benchmark

    benchmarks = [find_benchmark(task) for task in options.tasks or PAPER]
    out = options.out or Path("eval") / Path(options.model).absolute().name
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0), terminable():
            measured, results = _measured(options, benchmarks, out)
    except Timeout as error:
        raise InputError(f"{out}: another process writes there; give another --out") from error
    if options.json:
        return results

    from vocagno.evaluation.summary import RESULTS, lines

    print(in_table(lines(measured.shares)))
    print(out / RESULTS, file=sys.stderr)
    return None


def _measured(
    options: Any, benchmarks: "list[Benchmark]", out: Path
) -> "tuple[Measured, dict[str, Any]]":
    """Asks the model, and adds its results to those in the folder; all of them, and their file."""
    from vocagno import __version__
    from vocagno.config.teacher import TeacherConfig
    from vocagno.evaluation import running, summary
    from vocagno.models.loading import weights_identity
    from vocagno.system.files import write_json

    dtype, batch_size = options.dtype or "auto", options.batch_size or 8
    named_model = TeacherConfig(model=options.model, gguf_file=options.gguf_file)
    about = {
        "weights": weights_identity(named_model, out / "cache", "model"),
        "dtype": dtype,
        "vocagno": __version__,  # earlier verdicts are not given again
    }
    running.check_same_run(out, about)
    before = summary.read_stored(out, about)
    device_and_file = {name: options[name] for name in ("device", "gguf_file")}
    lm = running.load(options.model, dtype=dtype, batch_size=batch_size, **device_and_file)
    tasks = running.prepare_tasks(lm, benchmarks, options.data, limit=options.limit)
    running.say_what_is_short(tasks)
    write_json(out / running.RUN, about)
    verdicts = running.evaluate(lm, tasks, out, batch_size=batch_size)
    examples = {task.benchmark.name: task.examples for task in tasks}
    now = summary.Measured(summary.by_metric(verdicts), examples)
    file = out / summary.RESULTS
    for name in now.examples:
        if now.count(name) < before.count(name):
            print(
                f"{name}: {file} keeps the result of {before.count(name):,} items; for that of "
                f"{now.count(name):,}, use another --out",
                file=sys.stderr,
            )
    found = summary.merge_results(before, now)
    data = summary.results(options.model, found.shares, {**about, "examples": found.examples})
    write_json(file, data)
    return found, data


def _regraded(options: Any) -> dict[str, Any]:
    """The share of stored completions of one benchmark that is right, by both metrics."""
    from vocagno.evaluation.benchmarks import find_benchmark, read_completions, read_items
    from vocagno.evaluation.running import grade, write_verdicts
    from vocagno.evaluation.summary import METRICS, by_metric

    if options.model is not None or options.task is None:
        raise InputError("--regrade: expected --task NAME, and no model")
    benchmark = find_benchmark(options.task)
    completions, repeated = read_completions(options.regrade)
    completions = completions[: options.limit]
    items = read_items(benchmark, options.data)
    _say_what_is_odd(options.regrade, benchmark, items, completions, repeated)
    graded = []
    with Progress(f"grading {benchmark.name}", len(completions), unit="items", show=True) as shown:
        for one in grade(benchmark, items, completions):
            graded.append(one)
            shown.at(len(graded))
    if options["items"] is not None:
        write_verdicts(options["items"], graded)
    found = by_metric({benchmark.name: [one.verdict for one in graded]})
    shares = {metric: found[metric][benchmark.name].value for metric in METRICS}
    return {"task": benchmark.name, "count": len(graded), **shares}


def _say_what_is_odd(
    path: Path,
    benchmark: "Benchmark",
    items: "list[Item]",
    completions: "list[Completion]",
    repeated: int,
) -> None:
    name, questions = benchmark.name, {item.index: item.question.split() for item in items}
    other = [
        one.where
        for one in completions
        if one.question is not None and one.question.split() != questions.get(one.index)
    ]
    if repeated:
        print(f"{path}: {repeated} lines repeat an idx; the last of each counts", file=sys.stderr)
    if (count := len(completions)) < len(items):
        print(f"{path}: {count:,} of the {len(items):,} items of {name}", file=sys.stderr)
    if other:
        print(
            f"{other[0]}: the question is not that of the item with this idx in {name} "
            f"({len(other):,} such lines): are these answers to the same file?",
            file=sys.stderr,
        )

"""The command `vocagno eval`: mathematical benchmarks, graded as the paper graded them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError, require
from vocagno.system.progress import Progress, in_table
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from vocagno.evaluation.benchmarks import Benchmark, Item
    from vocagno.evaluation.running import Completion
    from vocagno.evaluation.summary import Measured

_TAKES = {
    "a model": ("tasks", "limit", "out", "batch_size", "dtype", "device", "gguf_file"),
    "--regrade": ("task", "items", "limit"),
    "--fetch": ("tasks",),
}
"""The options that each form of the command takes, in addition to --data and --json."""


def add_eval(parser: Any) -> None:
    """Grade a model on mathematical benchmarks, as the paper does and by math-verify.

    Each question follows worked examples. Every answer is kept in --out at once, so a killed
    evaluation resumes. Further tasks add to the results there. --regrade grades completions in a
    file, without a model.
    """
    parser.add_argument("model", type=str, nargs="?", help="The model: a folder or a hub name.")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="The folder of NAME/test.jsonl, plain or .gz, and of prompts/cot/NAME.md.",
    )
    parser.add_argument(
        "--tasks",
        type=str,
        nargs="+",
        metavar="NAME",
        help="The benchmarks to ask. By default, the ten of the paper's tables are asked.",
    )
    parser.add_argument(
        "--limit", type=int, help="Ask only this many items of each benchmark. Default: all."
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="The folder for the answers. Default: eval/MODEL in the current folder.",
    )
    parser.add_argument(
        "--batch_size", type=int, help="How many prompts are answered at a time. Default: 8."
    )
    parser.add_argument(
        "--dtype", type=str, help="The type of the weights, such as bfloat16. Default: auto."
    )
    parser.add_argument(
        "--device", type=str, help="The device of the model. Default: cuda, if there is one."
    )
    parser.add_argument(
        "--gguf_file", type=str, help="Read the weights from this file in the model's folder."
    )
    parser.add_argument(
        "--regrade",
        type=Path,
        metavar="FILE",
        help="Grade the completions in this file: JSON Lines of `idx` and `completion`.",
    )
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="Only download the questions of --tasks that the hub has, into --data.",
    )
    parser.add_argument(
        "--task", type=str, metavar="NAME", help="With --regrade: the benchmark of the completions."
    )
    parser.add_argument(
        "--items", type=Path, help="With --regrade: write the verdicts to this file, one a line."
    )


def eval_(options: Any) -> dict[str, Any] | None:
    """Evaluates a model, grades completions, or downloads questions: whichever the options say."""
    if options.fetch:
        form, run = "--fetch", _fetch
    elif options.regrade is not None:
        form, run = "--regrade", _regrade
    else:
        require(options.model is not None, "expected a model, or --regrade FILE")
        form, run = "a model", _evaluate
    _check_form(options, form)
    for name, unit in (("limit", "item"), ("batch_size", "prompt")):
        number = options[name]
        require(number is None or number > 0, f"--{name}: expected at least 1 {unit}, got {number}")
    return run(options)


def _check_form(options: Any, form: str) -> None:
    """Raises: InputError for an option that another form of the command takes."""
    names = dict.fromkeys(name for names in _TAKES.values() for name in names)
    wrong = [name for name in names if name not in _TAKES[form] and options[name] is not None]
    if wrong:
        refused, allowed = (
            ", ".join(f"--{name}" for name in names) for names in (wrong, _TAKES[form])
        )
        raise InputError(
            f"{refused}: no option of `vocagno eval` with {form}, which takes {allowed}"
        )


def _fetch(options: Any) -> dict[str, Any] | None:
    """Downloads the questions. With --json, returns the number of items by benchmark."""
    from vocagno.evaluation.benchmark_files import SOURCES, fetch
    from vocagno.evaluation.benchmarks import find_benchmark

    if options.model is not None or options.regrade is not None:
        raise InputError("--fetch: only downloads questions; omit the model and --regrade")
    counts = {}
    for benchmark in map(find_benchmark, options.tasks or SOURCES):
        path, counts[benchmark.name] = fetch(benchmark, options.data)
        print(f"{path}: {counts[benchmark.name]:,} items", file=sys.stderr)
    return counts if options.json else None


def _evaluate(options: Any) -> dict[str, Any] | None:
    """Evaluates a model. Returns the results as data, or prints a table of them."""
    from filelock import FileLock, Timeout

    from vocagno.evaluation.benchmarks import PAPER, find_benchmark

    benchmarks = [find_benchmark(task) for task in options.tasks or PAPER]
    out = options.out or Path("eval") / Path(options.model).absolute().name
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0), terminable():
            measured, results = _ask_model(options, benchmarks, out)
    except Timeout as error:
        raise InputError(f"{out}: another process writes here; give another --out") from error
    if options.json:
        return results

    from vocagno.evaluation.summary import RESULTS, lines

    print(in_table(lines(measured.shares)))
    print(out / RESULTS, file=sys.stderr)
    return None


def _ask_model(
    options: Any, benchmarks: "list[Benchmark]", out: Path
) -> "tuple[Measured, dict[str, Any]]":
    """Asks the model and adds its results to those in the folder.

    Returns: the results of all evaluations in the folder, as values and as `results.json` has them.
    """
    from vocagno import __version__
    from vocagno.config.teacher import TeacherConfig
    from vocagno.evaluation import running, summary
    from vocagno.models.loading import weights_identity
    from vocagno.system.files import write_json

    dtype, batch_size = options.dtype or "auto", options.batch_size or 8
    named_model = TeacherConfig(model=options.model, gguf_file=options.gguf_file)
    about = {
        "weights": weights_identity(named_model, out / "cache", "model"),
        "tokenizer": running.tokenizer_identity(options.model),
        "dtype": dtype,
        "vocagno": __version__,  # another version may grade the same answer differently
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
    measured = summary.merge_results(before, now)
    about_all = {**about, "examples": measured.examples}
    data = summary.results(options.model, measured.shares, about_all)
    write_json(file, data)
    return measured, data


def _regrade(options: Any) -> dict[str, Any]:
    """Grades stored completions of one benchmark. Returns the share that is right, by metric."""
    from vocagno.evaluation.benchmark_files import read_items
    from vocagno.evaluation.benchmarks import find_benchmark
    from vocagno.evaluation.running import grade, read_completions, write_verdicts
    from vocagno.evaluation.summary import METRICS, by_metric

    if options.model is not None or options.task is None:
        raise InputError("--regrade: grades one benchmark; give --task NAME, and no model")
    benchmark = find_benchmark(options.task)
    completions, repeated = read_completions(options.regrade)
    completions = completions[: options.limit]
    items = read_items(benchmark, options.data)
    _check_questions(benchmark, items, completions)
    _say_what_is_short(options.regrade, benchmark, len(items), len(completions), repeated)
    graded = []
    with Progress(
        f"grading {benchmark.name}", len(completions), unit="items", show=True
    ) as progress:
        for completion in grade(benchmark, items, completions):
            graded.append(completion)
            progress.at(len(graded))
    if options["items"] is not None:
        write_verdicts(options["items"], graded)
    results = by_metric({benchmark.name: [completion.verdict for completion in graded]})
    shares = {metric: results[metric][benchmark.name].value for metric in METRICS}
    return {"task": benchmark.name, "count": len(graded), **shares}


def _check_questions(
    benchmark: "Benchmark", items: "list[Item]", completions: "list[Completion]"
) -> None:
    """Compares the questions that the completions say they answer with those of the items.

    Graded against the gold answers of other questions, right answers would count as wrong.
    Raises: InputError if one differs by more than white space.
    """
    questions = {item.index: item.question.split() for item in items}
    mismatches = [
        completion.where
        for completion in completions
        if completion.question is not None
        and completion.question.split() != questions.get(completion.index)
    ]
    if mismatches:
        raise InputError(
            f"{mismatches[0]}: the question is not that of the item with this idx in "
            f"{benchmark.name} ({len(mismatches):,} such lines): give the --data that was "
            "answered; if it is, remove `question` from the lines"
        )


def _say_what_is_short(
    path: Path, benchmark: "Benchmark", num_items: int, num_completions: int, repeated: int
) -> None:
    """Prints how many lines of the completions do not count, and how many items have none."""
    if repeated:
        print(f"{path}: {repeated} lines repeat an idx; the last of each counts", file=sys.stderr)
    if num_completions < num_items:
        print(
            f"{path}: {num_completions:,} of the {num_items:,} items of {benchmark.name}",
            file=sys.stderr,
        )

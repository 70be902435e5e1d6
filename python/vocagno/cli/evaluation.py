"""`vocagno eval`: mathematical benchmarks, graded as the paper graded them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError

if TYPE_CHECKING:
    from vocagno.evaluation.benchmarks import Benchmark, Item
    from vocagno.evaluation.judging import Verdict
    from vocagno.evaluation.reading import Completion


def add_eval(parser: Any) -> None:
    """Grade a model on mathematical benchmarks, as the paper does and by math-verify.

    Each question follows worked examples. Every answer is kept in --out at once, so a killed
    evaluation resumes. --regrade grades completions in a file, without a model.
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
    parser.add_argument("--batch_size", type=int, default=8, help="prompts at a time")
    parser.add_argument("--dtype", type=str, default="auto", help="as bfloat16")
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
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit: expected at least 1 item, got {options.limit}")
    if options.fetch:
        return _fetched(options)
    if options.regrade is not None:
        return _regraded(options)
    if options.model is None:
        raise InputError("expected a model, or --regrade FILE")
    if options.task is not None or options["items"] is not None:
        raise InputError("--task and --items go with --regrade; benchmarks to ask are --tasks")
    return _evaluated(options)


def _fetched(options: Any) -> dict[str, Any] | None:
    """Counts of items by benchmark."""
    from vocagno.evaluation.benchmarks import named
    from vocagno.evaluation.fetching import SOURCES, fetch

    if options.model is not None or options.regrade is not None:
        raise InputError("--fetch goes with no model and no --regrade")
    counts = {}
    for benchmark in map(named, options.tasks or SOURCES):
        path, counts[benchmark.name] = fetch(benchmark, options.data)
        print(f"{path}: {counts[benchmark.name]:,} items", file=sys.stderr)
    return counts if options.json else None


def _evaluated(options: Any) -> dict[str, Any] | None:
    from filelock import FileLock, Timeout

    from vocagno.evaluation.benchmarks import PAPER, named
    from vocagno.system.files import write_json
    from vocagno.system.signals import terminable
    from vocagno.system.text_tables import in_table

    benchmarks = [named(task) for task in options.tasks or PAPER]
    if options.batch_size < 1:
        raise InputError(f"--batch_size: expected at least 1, got {options.batch_size}")
    out = options.out or Path("eval") / Path(options.model).absolute().name
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0), terminable():
            verdicts, about = _answers(options, benchmarks, out)
    except Timeout as error:
        raise InputError(f"{out}: another process writes there; give another --out") from error

    from vocagno.evaluation.summary import lines, results

    found = results(options.model, verdicts, about)
    write_json(out / "results.json", found)
    if options.json:
        return found
    print(in_table(lines(verdicts)))
    print(out / "results.json", file=sys.stderr)
    return None


def _answers(
    options: Any, benchmarks: "list[Benchmark]", out: Path
) -> "tuple[dict[str, list[Verdict]], dict[str, Any]]":
    """Verdicts by benchmark, and what they are verdicts of."""
    from vocagno import __version__
    from vocagno.config.teacher import TeacherConfig
    from vocagno.evaluation.asking import load
    from vocagno.evaluation.journal import check_same_run, note_run
    from vocagno.evaluation.running import evaluate, prepared, say_what_is_short
    from vocagno.models.loading import weights_identity

    named_model = TeacherConfig(model=options.model, gguf_file=options.gguf_file)
    about = {
        "weights": weights_identity(named_model, out / "cache", "model"),
        "dtype": options.dtype,
        "vocagno": __version__,  # earlier verdicts are not given again
    }
    check_same_run(out, about)
    names = ("dtype", "device", "gguf_file", "batch_size")
    lm = load(options.model, **{name: options[name] for name in names})
    tasks = prepared(lm, benchmarks, options.data, limit=options.limit)
    say_what_is_short(tasks)
    note_run(out, about)
    verdicts = evaluate(lm, tasks, out, batch_size=options.batch_size, show=True)
    examples = {task.benchmark.name: task.examples for task in tasks}
    return verdicts, {**about, "examples": examples}


def _regraded(options: Any) -> dict[str, Any]:
    """The share of stored completions of one benchmark that is right, by both metrics."""
    from vocagno.evaluation.benchmarks import named
    from vocagno.evaluation.reading import read_completions, read_items
    from vocagno.evaluation.regrading import grade, write_verdicts
    from vocagno.evaluation.summary import METRICS, share_right
    from vocagno.system.progress import Progress

    if options.model is not None or options.task is None:
        raise InputError("--regrade: expected --task NAME, and no model")
    benchmark = named(options.task)
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
    shares = {
        metric: share_right([getattr(one.verdict, metric) for one in graded]).value
        for metric in METRICS
    }
    return {"task": benchmark.name, "count": len(graded), **shares}


def _say_what_is_odd(
    path: Path,
    benchmark: "Benchmark",
    items: "list[Item]",
    completions: "list[Completion]",
    repeated: int,
) -> None:
    questions = {item.index: item.question.split() for item in items}
    other = [
        completion.where
        for completion in completions
        if completion.question is not None
        and completion.question.split() != questions.get(completion.index)
    ]
    if repeated:
        print(f"{path}: {repeated} lines repeat an idx; the last of each counts", file=sys.stderr)
    if len(completions) < len(items):
        print(
            f"{path}: {len(completions):,} of the {len(items):,} items of {benchmark.name}",
            file=sys.stderr,
        )
    if other:
        print(
            f"{other[0]}: the question is not that of the item with this idx in {benchmark.name} "
            f"({len(other):,} such lines): are these answers to the same file?",
            file=sys.stderr,
        )

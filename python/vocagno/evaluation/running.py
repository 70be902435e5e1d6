"""Evaluates a model on benchmarks, or grades stored completions without the model.

Prompts go through lm-eval: greedy, with stop strings, without truncation. Each answer is stored as
soon as it is graded, so that a killed evaluation can be resumed.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from vocagno.errors import InputError, naming
from vocagno.evaluation.benchmark_files import (
    BenchmarkError,
    Examples,
    json_object,
    json_records,
    read_examples,
    read_items,
)
from vocagno.evaluation.benchmarks import Benchmark, Item
from vocagno.evaluation.judge import Judge, Verdict
from vocagno.system.files import atomic_file, digest, file_digest
from vocagno.system.progress import Progress

NEW_TOKENS = 1024
"""Maximum length of an answer, as in the paper's harness."""
STOP = ("</s>", "\n\nQuestion:", "\n\nProblem:")
"""Strings that end an answer, as in the paper's harness."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class PromptedItem:
    """A question with its prompt for one model."""

    item: Item
    prompt: str
    room: int
    """Maximum number of new tokens: the requested number, or what the context leaves."""


def load(
    model: str, *, dtype: str, device: str | None, gguf_file: str | None, batch_size: int
) -> Any:
    """Loads a model with its tokenizer for lm-eval.

    Raises: InputError for a model that cannot be loaded or has no tokenizer, or for a device that
        this machine lacks.
    """
    from transformers import AutoTokenizer

    from vocagno.evaluation._prompted import PromptedModel
    from vocagno.models.loading import check_vocabulary
    from vocagno.models.weights import causal_model
    from vocagno.tokens.gguf_tokenizer import tokenizer_of_gguf

    device = resolve_device(device)
    folder = Path(model)
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    if gguf_file is None and folder.is_dir() and not has_tokenizer:
        raise InputError(
            f"{model}: a folder without a tokenizer ({', '.join(_TOKENIZER_FILES)}); save "
            "the model's tokenizer there"
        )
    options = {"dtype": dtype, "device_map": {"": device}}
    loaded = causal_model(model, "model", gguf_file=gguf_file, **options)
    with naming(f"model {model}"):
        tokenizer = (
            AutoTokenizer.from_pretrained(model)
            if gguf_file is None
            else tokenizer_of_gguf(model, gguf_file)
        )
        # An id beyond the embeddings would fail only in the first prompt that has it.
        check_vocabulary(loaded, max(tokenizer.get_vocab().values()) + 1, "")
        return PromptedModel(pretrained=loaded, tokenizer=tokenizer, batch_size=batch_size)


def tokenizer_identity(model: str) -> str | None:
    """Identifies the files of a model's tokenizer, of which the identity of its weights says
    nothing. None for a name on the hub, whose commit is part of that identity."""
    if not Path(model).is_dir():
        return None
    patterns = "tokenizer*", "special_tokens*", "added_tokens*", "vocab*", "merges*", "*.jinja"
    paths = (file for pattern in patterns for file in Path(model).glob(pattern))
    files = sorted(file for file in paths if file.is_file())
    return digest(*(f"{file.name} {file_digest(file)}" for file in files))


def resolve_device(device: str | None) -> str:
    """Returns the name of a device of this machine, by default CUDA or else the CPU. Raises:
    InputError for another name, for which lm-eval would silently take the default."""
    import torch

    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        kind = accelerator.type
        numbered = [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
        devices += [kind, *numbered] if kind in ("cuda", "mps") else numbered
    if device is None:
        return "cuda" if "cuda" in devices else "cpu"
    if device not in devices:
        raise InputError(
            f"--device {device}: not a device of this machine; expected {' or '.join(devices)}"
        )
    return device


def fit_prompts(
    lm: Any, benchmark: Benchmark, examples: Examples, items: Sequence[Item], new_tokens: int
) -> list[PromptedItem]:
    """Returns the items with their prompts, the longest first. Raises: InputError if a prompt
    leaves no room for an answer in the model's context."""
    prompts: list[tuple[int, PromptedItem]] = []
    for item in items:
        prompt = examples.prompt(benchmark, item.question)
        size = len(lm.tok_encode(prompt))
        prompts.append((size, PromptedItem(item, prompt, min(new_tokens, lm.max_length - size))))
    prompts.sort(key=lambda pair: -pair[0])  # too little memory shows in the first batch
    if too_long := [prompted.item.index for _, prompted in prompts if prompted.room <= 0]:
        names = ", ".join(map(str, sorted(too_long)[:5]))
        raise InputError(
            f"{benchmark.name}: {len(too_long):,} of {len(items):,} prompts, with "
            f"{benchmark.shots} worked examples, do not fit the model's context of "
            f"{lm.max_length:,} tokens (idx {names}{', ...' if len(too_long) > 5 else ''}; the "
            f"longest, {too_long[0]}, has {prompts[0][0]:,} tokens); omit the benchmark"
        )
    return [prompted for _, prompted in prompts]


@contextmanager
def _greedy_decoding(model: Any) -> Iterator[None]:
    """Makes a model ignore its generation_config.json, which may set a penalty, beams or another
    limit, while the context is open."""
    from transformers import GenerationConfig

    original = model.generation_config
    names = "bos_token_id", "eos_token_id", "pad_token_id"
    model.generation_config = GenerationConfig(**{name: getattr(original, name) for name in names})
    try:
        yield
    finally:
        model.generation_config = original


def generate_answers(
    lm: Any, asked: Sequence[PromptedItem], batch_size: int
) -> Iterator[list[tuple[PromptedItem, str]]]:
    """Asks the model, and yields the items of each batch with their completions."""
    from lm_eval.api.instance import Instance

    # A batch has one limit of new tokens, so the items of a batch have the same room.
    for room, same_room in groupby(asked, key=lambda prompted: prompted.room):
        while batch := list(islice(same_room, batch_size)):
            options = {"until": list(STOP), "max_gen_toks": room, "do_sample": False}
            requests = [
                Instance("generate_until", {}, (prompted.prompt, options), index)
                for index, prompted in enumerate(batch)
            ]
            with _greedy_decoding(lm.model):
                completions = lm.generate_until(requests, disable_tqdm=True)
            yield list(zip(batch, (text.strip() for text in completions), strict=True))


RUN = "run.json"
"""Name of the file, in the folder of an evaluation, with the model and settings of its answers."""
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "idx": (int,),
    "prompt_hash": (str,),
    "room": (int,),
    "gold": (str,),
    "answer": (str, NoneType),
    "harness_match": (bool,),
    "math_verify": (bool,),
    "undecided": (list,),
}
"""The fields of a journal's line that are read, with their types. Those of the verdict are last."""
_OTHER_OUT = "use another --out"


class Journal(AbstractContextManager["Journal"]):
    """The answers to one benchmark, in NAME.jsonl: one line per item, in the order of answering.

    Raises: InputError if a line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[int, dict[str, Any]] = {}
        data = path.read_bytes() if path.is_file() else b""
        complete = data[: data.rfind(b"\n") + 1]  # a kill may have cut off the last line
        for number, line in enumerate(complete.splitlines(), 1):
            record = _record(line, f"{path}, line {number}")
            self._records[record["idx"]] = record
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab")
        self._file.truncate(len(complete))

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def verdict(self, asked: PromptedItem) -> Verdict | None:
        """Returns the stored verdict on an item, or None. Raises: InputError if the item was asked
        with another prompt or limit, or had another gold answer."""
        record = self._records.get(asked.item.index)
        if record is None:
            return None
        for name, value in _conditions(asked).items():
            if record[name] != value:
                raise InputError(
                    f"{self.path}: idx {asked.item.index} was asked with {name} {record[name]!r}, "
                    f"which is {value!r} now; {_OTHER_OUT}"
                )
        fields = {name: record[name] for name in Verdict.__dataclass_fields__}
        return Verdict(**{**fields, "undecided": tuple(fields["undecided"])})

    def add(self, asked: PromptedItem, completion: str, verdict: Verdict) -> None:
        """Appends the answer to an item, and writes it to the disk at once."""
        record = {
            "idx": asked.item.index,
            "prompt_hash": digest(asked.prompt),
            "room": asked.room,
            "completion": completion,
            "gold": asked.item.gold,
            **asdict(verdict),
        }
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()


def _conditions(asked: PromptedItem) -> dict[str, Any]:
    """Returns the fields that a stored answer must share with the item as it is asked now."""
    return {"prompt_hash": digest(asked.prompt), "room": asked.room, "gold": asked.item.gold}


def check_same_run(out: Path, about: Mapping[str, Any]) -> None:
    """Checks that a folder has no answers of another model, or by other settings. Raises:
    InputError if it has."""
    path = out / RUN
    if path.is_file():
        check_same(out, json_object(path.read_bytes(), str(path), f"; {_OTHER_OUT}"), about)


def check_same(where: Path, before: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Checks that stored answers are of the same model and settings. Raises: InputError that names
    the first difference."""
    for name in {**before, **about}:
        # Earlier versions noted no tokenizer.
        if before.get(name, about.get(name)) != about.get(name):
            raise InputError(
                f"{where}: contains answers with {name} {before.get(name)!r}, not "
                f"{about.get(name)!r}; {_OTHER_OUT}"
            )


def _record(line: bytes, where: str) -> dict[str, Any]:
    """Reads the fields of a journal's line. Raises: InputError if one is missing or has another
    type."""
    remedy = f"; remove the line to ask its item again, or {_OTHER_OUT}"
    record = json_object(line, where, remedy)
    for name, kinds in _FIELDS.items():
        if name not in record:
            raise InputError(f"{where}: damaged (no {name}){remedy}")
        if type(record[name]) not in kinds:  # a bool is an int, too
            raise InputError(f"{where}: damaged ({name} is {record[name]!r:.60}){remedy}")
    return record


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark with its prompts for a model."""

    benchmark: Benchmark
    asked: Sequence[PromptedItem]
    examples: str
    """Source of its worked examples: a file, or `lm-eval`."""


def prepare_tasks(
    lm: Any,
    benchmarks: Iterable[Benchmark],
    data: Path,
    *,
    limit: int | None,
    new_tokens: int = NEW_TOKENS,
) -> list[Task]:
    """Reads the benchmarks and builds their prompts, all before the first question is asked.

    Raises: InputError for a benchmark that cannot be read, or does not fit the model.
    """
    tasks = []
    for benchmark in benchmarks:
        examples = read_examples(benchmark, data)
        items = read_items(benchmark, data, limit=limit)
        asked = fit_prompts(lm, benchmark, examples, items, new_tokens)
        tasks.append(Task(benchmark, asked, examples.source))
    return tasks


def say_what_is_short(tasks: Iterable[Task]) -> None:
    """Reports prompts that leave less room for an answer than the paper's harness does."""
    for task in tasks:
        if rooms := [prompted.room for prompted in task.asked if prompted.room < NEW_TOKENS]:
            print(
                f"{task.benchmark.name}: {len(rooms):,} of {len(task.asked):,} prompts leave fewer "
                f"than {NEW_TOKENS:,} tokens for an answer, the longest {min(rooms):,}",
                file=sys.stderr,
            )


def evaluate(
    lm: Any, tasks: Sequence[Task], out: Path, *, batch_size: int
) -> dict[str, list[Verdict]]:
    """Asks the questions that have no stored answer, and grades the answers. Each is written to
    `out` immediately. Returns the verdicts by benchmark, in the order of the items."""
    verdicts: dict[str, list[Verdict]] = {}
    with Judge() as judge:
        for task in tasks:
            name = task.benchmark.name
            with Journal(out / f"{name}.jsonl") as journal:
                by_index = _evaluate(lm, task, journal, judge, batch_size)
            verdicts[name] = [by_index[index] for index in sorted(by_index)]
    return verdicts


def _evaluate(
    lm: Any, task: Task, journal: Journal, judge: Judge, batch_size: int
) -> dict[int, Verdict]:
    """Returns verdicts by the number of the item: those in the journal, then those of new
    answers."""
    name, count = task.benchmark.name, len(task.asked)
    stored = {prompted.item.index: journal.verdict(prompted) for prompted in task.asked}
    verdicts = {index: verdict for index, verdict in stored.items() if verdict is not None}
    unanswered = [prompted for prompted in task.asked if prompted.item.index not in verdicts]
    with Progress(name, count, unit="items", show=True, start=len(verdicts)) as progress:
        for batch in generate_answers(lm, unanswered, batch_size):
            for prompted, completion in batch:
                verdict = judge.verdict(task.benchmark, prompted.item, completion)
                journal.add(prompted, completion, verdict)
                verdicts[prompted.item.index] = verdict
            right = sum(verdict.harness_match for verdict in verdicts.values())
            progress.at(len(verdicts), f"{100 * right / len(verdicts):.1f} % correct")
    return verdicts


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's completion for one item."""

    index: int
    text: str
    question: str | None
    """The question it answers, if the file has it."""
    gold: str | None
    """The gold answer to it, normalised, if the file has it."""
    where: str
    """File and line."""


def read_completions(path: Path) -> tuple[list[Completion], int]:
    """Reads completions. Returns them in the order of their `idx`, and the number of duplicates. Of
    completions with the same `idx`, the last is used.

    Raises: BenchmarkError for a line without an `idx` and a `completion`, or with a `question` or a
        `gold` that is not a string.
    """
    completions: dict[int, Completion] = {}
    records = list(json_records(path))
    for where, record in records:
        index, text = record.get("idx"), record.get("completion")
        if not isinstance(index, int) or not isinstance(text, str):
            raise BenchmarkError(
                f"{where}: expected an integer `idx` and a string `completion`, got {record!r:.80}"
            )
        question, gold = record.get("question"), record.get("gold")
        for name, value in (("question", question), ("gold", gold)):
            if not isinstance(value, str | None):
                raise BenchmarkError(
                    f"{where}: expected a string as `{name}`, or none, got {value!r:.60}"
                )
        completions[index] = Completion(index, text, question, gold, where)
    if not completions:
        raise BenchmarkError(f"{path}: no completions")
    return [completions[index] for index in sorted(completions)], len(records) - len(completions)


@dataclass(frozen=True, slots=True)
class Graded:
    """A completion with its verdict."""

    item: Item
    completion: str
    verdict: Verdict


def grade(
    benchmark: Benchmark, items: list[Item], completions: list[Completion]
) -> Iterator[Graded]:
    """Grades completions in their order. Raises: BenchmarkError for a completion without an item,
    or with the gold answer of another one, before the first verdict."""
    items_by_index = {item.index: item for item in items}
    for completion in completions:
        if completion.index not in items_by_index:
            raise BenchmarkError(
                f"{completion.where}: {benchmark.name} has no item with idx {completion.index}"
            )
        gold = items_by_index[completion.index].gold
        if completion.gold not in (None, gold):
            raise BenchmarkError(
                f"{completion.where}: `gold` is {completion.gold!r:.60}, but that of item "
                f"{completion.index} of {benchmark.name} is {gold!r:.60}: these completions answer "
                "other questions"
            )
    with Judge() as judge:
        for completion in completions:
            item = items_by_index[completion.index]
            yield Graded(item, completion.text, judge.verdict(benchmark, item, completion.text))


def write_verdicts(path: Path, graded: list[Graded], *, with_completions: bool = False) -> None:
    """Writes one verdict per line, as JSON."""
    with atomic_file(path) as file:
        for answer in graded:
            record = {"idx": answer.item.index, "gold": answer.item.gold, **asdict(answer.verdict)}
            if with_completions:
                record["completion"] = answer.completion
            file.write((json.dumps(record) + "\n").encode())

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
from vocagno.evaluation.benchmarks import (
    Benchmark,
    BenchmarkError,
    Completion,
    Examples,
    Item,
    json_object,
    read_examples,
    read_items,
)
from vocagno.evaluation.judge import Judge, Verdict
from vocagno.system.files import appearing, digest
from vocagno.system.progress import Progress

NEW_TOKENS = 1024
"""Maximum length of an answer, as in the paper's harness."""
STOP = ("</s>", "\n\nQuestion:", "\n\nProblem:")
"""Strings that end an answer, as in the paper's harness."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Asked:
    """An item with its prompt for one model."""

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

    device = checked_device(device)
    folder = Path(model)
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZERS)
    if gguf_file is None and folder.is_dir() and not has_tokenizer:
        raise InputError(
            f"{model}: a folder without a tokenizer ({', '.join(_TOKENIZERS)}); save the model's "
            "tokenizer there"
        )
    options = {"dtype": dtype, "device_map": {"": device}}
    loaded = causal_model(model, "model", gguf_file=gguf_file, **options)
    with naming(f"model {model}"):
        tokenizer = AutoTokenizer.from_pretrained(model, gguf_file=gguf_file)
        check_vocabulary(loaded, max(tokenizer.get_vocab().values()) + 1, "")
        return PromptedModel(pretrained=loaded, tokenizer=tokenizer, batch_size=batch_size)


def checked_device(device: str | None) -> str:
    """A device of this machine, by default CUDA or else the CPU. Raises: InputError for another
    name, for which lm-eval would silently take the default."""
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


def fitted(
    lm: Any, benchmark: Benchmark, examples: Examples, items: Sequence[Item], new_tokens: int
) -> list[Asked]:
    """Items with their prompts, the longest first. Raises: InputError if one leaves no room for an
    answer in the model's context."""
    asked: list[tuple[int, Asked]] = []
    for item in items:
        prompt = examples.prompt(benchmark, item.question)
        tokens = len(lm.tok_encode(prompt))
        asked.append((tokens, Asked(item, prompt, min(new_tokens, lm.max_length - tokens))))
    if full := [(tokens, one) for tokens, one in asked if one.room <= 0]:
        tokens, longest = max(full, key=lambda pair: pair[0])
        names = ", ".join(str(one.item.index) for _, one in full[:5])
        raise InputError(
            f"{benchmark.name}: {len(full):,} of {len(items):,} prompts, with {benchmark.shots} "
            f"worked examples, do not fit the model's context of {lm.max_length:,} tokens (idx "
            f"{names}{', ...' if len(full) > 5 else ''}; the longest, {longest.item.index}, has "
            f"{tokens:,} tokens); omit the benchmark"
        )
    return [one for _, one in sorted(asked, key=lambda pair: -pair[0])]


@contextmanager
def _greedy(model: Any) -> Iterator[None]:
    """Ignores the model's own generation_config.json: a penalty, beams, another limit."""
    from transformers import GenerationConfig

    own = model.generation_config
    ends = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    try:
        yield
    finally:
        model.generation_config = own


def answered(lm: Any, asked: Sequence[Asked], batch_size: int) -> Iterator[list[tuple[Asked, str]]]:
    """Completions in batches; the items of a batch have the same `room`."""
    from lm_eval.api.instance import Instance

    for room, alike in groupby(asked, key=lambda one: one.room):
        while batch := list(islice(alike, batch_size)):
            options = {"until": list(STOP), "max_gen_toks": room, "do_sample": False}
            requests = [
                Instance("generate_until", {}, (one.prompt, options), index)
                for index, one in enumerate(batch)
            ]
            with _greedy(lm.model):
                found = lm.generate_until(requests, disable_tqdm=True)
            yield list(zip(batch, (text.strip() for text in found), strict=True))


RUN = "run.json"
"""In the folder of an evaluation: the model and settings of its answers."""
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
"""Fields of a line that are read, those of the verdict last, with their types."""
_OTHER_OUT = "use another --out"


class Journal(AbstractContextManager["Journal"]):
    """The answers to one benchmark, in NAME.jsonl: one line per item, in the order of answering."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[int, dict[str, Any]] = {}
        data = path.read_bytes() if path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]  # a kill may have cut off the last line
        for number, line in enumerate(whole.splitlines(), 1):
            record = _record(line, f"{path}, line {number}")
            self._found[record["idx"]] = record
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab")
        self._file.truncate(len(whole))

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def verdict(self, asked: Asked) -> Verdict | None:
        """The stored verdict on an item, if any. Raises: InputError if it was asked otherwise."""
        record = self._found.get(asked.item.index)
        if record is None:
            return None
        for name, value in _as_asked(asked).items():
            if record[name] != value:
                raise InputError(
                    f"{self.path}: idx {asked.item.index} was asked with {name} {record[name]!r}, "
                    f"which is {value!r} now; {_OTHER_OUT}"
                )
        fields = {name: record[name] for name in Verdict.__dataclass_fields__}
        return Verdict(**{**fields, "undecided": tuple(fields["undecided"])})

    def add(self, asked: Asked, completion: str, verdict: Verdict) -> None:
        given = {"idx": asked.item.index, **_as_asked(asked)}
        gold = given.pop("gold")
        record = given | {"completion": completion, "gold": gold} | asdict(verdict)
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()


def _as_asked(asked: Asked) -> dict[str, Any]:
    """What a stored answer must have in common with the item as it is asked now."""
    return {"prompt_hash": digest(asked.prompt), "room": asked.room, "gold": asked.item.gold}


def check_same_run(out: Path, about: Mapping[str, Any]) -> None:
    """Raises: InputError for a folder with answers of another model, or by other settings."""
    path = out / RUN
    if path.is_file():
        check_same(out, json_object(path.read_bytes(), str(path), f"; {_OTHER_OUT}"), about)


def check_same(where: Path, before: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raises: InputError if stored answers are of another model, or by other settings."""
    for name in {**before, **about}:
        if before.get(name) != about.get(name):
            raise InputError(
                f"{where}: contains answers with {name} {before.get(name)!r}, not "
                f"{about.get(name)!r}; {_OTHER_OUT}"
            )


def _record(line: bytes, where: str) -> dict[str, Any]:
    """The fields of a line. Raises: InputError if one is missing or has another type."""
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
    asked: Sequence[Asked]
    examples: str
    """Where its worked examples were read from."""


def prepared(
    lm: Any,
    benchmarks: Iterable[Benchmark],
    data: Path,
    *,
    limit: int | None,
    new_tokens: int = NEW_TOKENS,
) -> list[Task]:
    """Reads all benchmarks before the first question. Raises: InputError for one that cannot be
    read, or does not fit the model."""
    tasks = []
    for benchmark in benchmarks:
        examples = read_examples(benchmark, data)
        items = read_items(benchmark, data, limit=limit)
        asked = fitted(lm, benchmark, examples, items, new_tokens)
        tasks.append(Task(benchmark, asked, examples.source))
    return tasks


def say_what_is_short(tasks: Iterable[Task]) -> None:
    """Reports prompts that leave less room for an answer than the paper's harness does."""
    for task in tasks:
        if short := [one.room for one in task.asked if one.room < NEW_TOKENS]:
            print(
                f"{task.benchmark.name}: {len(short):,} of {len(task.asked):,} prompts leave fewer "
                f"than {NEW_TOKENS:,} tokens for an answer, the longest {min(short):,}",
                file=sys.stderr,
            )


def evaluate(
    lm: Any, tasks: Sequence[Task], out: Path, *, batch_size: int
) -> dict[str, list[Verdict]]:
    """Verdicts by benchmark, in the order of the items; each is written to `out` immediately."""
    verdicts: dict[str, list[Verdict]] = {}
    with Judge() as judge:
        for task in tasks:
            name = task.benchmark.name
            with Journal(out / f"{name}.jsonl") as journal:
                found = _evaluate(lm, task, journal, judge, batch_size)
            verdicts[name] = [found[index] for index in sorted(found)]
    return verdicts


def _evaluate(
    lm: Any, task: Task, journal: Journal, judge: Judge, batch_size: int
) -> dict[int, Verdict]:
    """Verdicts by the number of the item: those in the journal, and then those of new answers."""
    name, count = task.benchmark.name, len(task.asked)
    stored = {one.item.index: journal.verdict(one) for one in task.asked}
    found = {index: verdict for index, verdict in stored.items() if verdict is not None}
    left = [one for one in task.asked if one.item.index not in found]
    with Progress(name, count, unit="items", show=True, start=len(found)) as progress:
        for batch in answered(lm, left, batch_size):
            for one, completion in batch:
                verdict = judge.verdict(task.benchmark, one.item, completion)
                journal.add(one, completion, verdict)
                found[one.item.index] = verdict
            right = sum(verdict.harness_match for verdict in found.values())
            progress.at(len(found), f"{100 * right / len(found):.1f} % correct")
    return found


@dataclass(frozen=True, slots=True)
class Graded:
    """A completion with its verdict."""

    item: Item
    completion: str
    verdict: Verdict


def grade(
    benchmark: Benchmark, items: list[Item], completions: list[Completion]
) -> Iterator[Graded]:
    """Verdicts in the order of the completions. Raises: BenchmarkError for one without an item."""
    named = {item.index: item for item in items}
    for completion in completions:
        if completion.index not in named:
            raise BenchmarkError(
                f"{completion.where}: {benchmark.name} has no item with idx {completion.index}"
            )
    with Judge() as judge:
        for completion in completions:
            item = named[completion.index]
            yield Graded(item, completion.text, judge.verdict(benchmark, item, completion.text))


def write_verdicts(path: Path, graded: list[Graded], *, with_completions: bool = False) -> None:
    """Writes one verdict per line, as JSON."""
    with appearing(path) as file:
        for one in graded:
            record = {"idx": one.item.index, "gold": one.item.gold, **asdict(one.verdict)}
            if with_completions:
                record["completion"] = one.completion
            file.write((json.dumps(record) + "\n").encode())

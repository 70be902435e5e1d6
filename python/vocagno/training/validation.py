"""The student's loss on held-out text, and its answers to benchmarks, while it is trained."""

import copy
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import accelerate
import torch

from vocagno.config.options import EvaluationConfig, TrainConfig
from vocagno.data.rows import RowStore, RowsWithEmpty
from vocagno.errors import ConfigError
from vocagno.evaluation.benchmark_files import read_examples, read_items
from vocagno.evaluation.benchmarks import find_benchmark
from vocagno.evaluation.judge import Judge
from vocagno.evaluation.running import Graded, Task, generate_answers, prepare_tasks, write_verdicts
from vocagno.evaluation.summary import METRICS, by_metric
from vocagno.guidance.collator import Collator, loader
from vocagno.guidance.loss import LossSums
from vocagno.models.weights import largest_input
from vocagno.system.collectives import HostSum
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.sampler import ValidationBatches


def validate(
    student: Any,
    held_out: Mapping[str, RowStore],
    train: TrainConfig,
    collator: Collator,
    accelerator: accelerate.Accelerator,
    host_sum: HostSum,
    num_workers: int = 0,
) -> dict[str, Any]:
    """Computes the mean loss over all rows, which are divided among the processes.

    Args: collator: one without scores, because held-out text has none.
    Returns: a line for `metrics.jsonl`. If there are several stores, `validation_losses` has the
        loss of each. `validation_nats_per_byte` compares students of different tokenizers, whose
        tokens differ in length.
    """
    started = time.monotonic()
    totals = torch.zeros(len(held_out), dtype=torch.float64, device=accelerator.device)
    counts, sizes = torch.zeros(2, len(held_out), dtype=torch.float64)
    student.eval()
    with torch.no_grad():
        for number, rows in enumerate(held_out.values()):
            batches = ValidationBatches(
                len(rows), train.micro_batch, accelerator.process_index, accelerator.num_processes
            )
            for batch in loader(RowsWithEmpty(rows), batches, collator, num_workers):
                inputs = batch.to(accelerator.device).inputs()
                del inputs["teacher_loss"]  # nothing is to be ranked
                totals[number] += LossSums(*student(**inputs).sums).nll
                counts[number] += batch.counts.predicted
                sizes[number] += batch.text_bytes
    student.train()
    nll, tokens, text_bytes = host_sum(torch.stack([totals.cpu(), counts, sizes])).tolist()
    entry: dict[str, Any] = {"validation_loss": sum(nll) / max(1.0, sum(tokens))}
    entry["validation_nats_per_byte"] = sum(nll) / max(1.0, sum(text_bytes))
    if len(held_out) > 1:
        means = (total / max(1.0, count) for total, count in zip(nll, tokens, strict=True))
        entry["validation_losses"] = dict(zip(held_out, means, strict=True))
    return {
        **entry,
        "validation_tokens": int(sum(tokens)),
        "validation_seconds": round(time.monotonic() - started, 3),
    }


Answer = tuple[str, int, str]
"""The name of a benchmark, the number of an item in it, and the completion."""


@contextmanager
def _evaluation_mode(student: Any) -> Iterator[None]:
    """Puts the student into evaluation mode, and restores its mode and the random states.

    So a run with benchmarks is bit by bit the run without them. Compiled layers run uncompiled
    meanwhile: each length of a prompt would compile them again.
    """
    devices = [torch.accelerator.current_device_index()] if torch.accelerator.is_available() else []
    with torch.random.fork_rng(devices), torch.compiler.set_stance("force_eager"), torch.no_grad():
        student.eval()
        try:
            yield
        finally:
            student.train()


def check_benchmarks(options: EvaluationConfig, accelerator: accelerate.Accelerator) -> None:
    """Checks before hours of scoring that the benchmarks of a run, if it has any, are there.

    Raises: InputError for a benchmark that is not known or cannot be read, and if a library is
        missing; ConfigError under DeepSpeed's ZeRO 3, whose shards of weights are not put together
        for them.
    """
    if options.every is not None and options.data is not None:
        plugin = accelerator.state.deepspeed_plugin
        if plugin is not None and plugin.zero_stage == 3:
            raise ConfigError("eval.every: not under DeepSpeed's ZeRO 3; use its stage 2, or FSDP2")
        import_module("vocagno.evaluation._prompted")  # it and the judge need libraries
        Judge()
        for benchmark in map(find_benchmark, options.tasks):
            read_examples(benchmark, Path(options.data))
            read_items(benchmark, Path(options.data))


@dataclass(frozen=True, slots=True)
class _PromptLengths:
    """Lengths of prompts for `prepare_tasks`, of a student that is not loaded yet."""

    spans: TokenSpans
    max_length: int
    """Tokens that the student reads."""

    def tok_encode(self, prompt: str) -> list[int]:
        """The ids of a prompt, without special tokens, of which lm-eval may add some."""
        ids: list[int] = self.spans.encode([prompt]).ids.tolist()
        return ids


def check_prompts(options: EvaluationConfig, spans: TokenSpans, settings: Any) -> None:
    """Checks before hours of scoring that the prompts of a run's benchmarks fit the student.

    Args: settings: the student's transformers configuration; one without a largest number of
        positions is not checked.
    Raises: InputError for prompts that leave no room for an answer.
    """
    longest = largest_input(settings)
    if options.every is not None and options.data is not None and longest is not None:
        lengths, new_tokens = _PromptLengths(spans, longest), options.new_tokens
        benchmarks = map(find_benchmark, options.tasks)
        limit = options.limit
        prepare_tasks(lengths, benchmarks, Path(options.data), limit=limit, new_tokens=new_tokens)


@dataclass(eq=False)
class Evaluation:
    """Runs the benchmarks of `eval` on a student in training."""

    options: EvaluationConfig
    folder: Path
    """The folder for the completions."""
    accelerator: accelerate.Accelerator
    model: Any
    tokenizer: Any
    host_sum: HostSum
    tasks: list[Task] = field(init=False)

    def __post_init__(self) -> None:
        """Reads all questions and fits them to the student's context.

        Raises: InputError for a benchmark that cannot be read, or does not fit.
        """
        options = self.options
        assert options.data is not None
        with _evaluation_mode(self.model):  # lm-eval switches dropout off in a model that it gets
            lm = self._lm(self.model)
        benchmarks = map(find_benchmark, dict.fromkeys(options.tasks))
        self.tasks = prepare_tasks(
            lm, benchmarks, Path(options.data), limit=options.limit, new_tokens=options.new_tokens
        )

    def run(self, student: Any, step: int) -> dict[str, Any]:
        """Runs the benchmarks; all processes call it.

        Each process asks its share of the questions. The first one grades the answers, and writes
        the completions to `evaluations/step_N/NAME.jsonl`. The others wait outside of a collective,
        which would time out.

        Returns: a line for `metrics.jsonl`: the share of right answers to each benchmark, by both
            metrics.
        """
        started = time.monotonic()
        with _evaluation_mode(student), self.accelerator.autocast():
            answers = self._answers(student)
        entry: dict[str, Any] = {"step": step}
        if self.accelerator.is_main_process:
            entry |= self._grade(answers, step)
        self.host_sum.meet()
        return entry | {"eval_seconds": round(time.monotonic() - started, 3)}

    def _answers(self, student: Any) -> list[Answer]:
        """The answers to all questions.

        If the weights are sharded, the first process asks all questions with a whole copy of the
        model, and the others return no answers.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        if "FSDP" in str(self.accelerator.distributed_type):
            whole = self.accelerator.get_state_dict(student)
            # Processes with sharded weights must take forward passes together, and answers differ
            # in length.
            if rank:
                return []
            return list(self._answer_share(self._copy(whole), 0, 1))
        answers = list(self._answer_share(self.model, rank, world))
        # Patient: a process with long answers may need longer than a collective waits.
        return list(chain.from_iterable(self.host_sum.gather(answers, patient=True)))

    def _copy(self, weights: dict[str, Any]) -> Any:
        """A copy of the student, in evaluation mode, with the weights of a `GuidedStudent`."""
        model = type(self.model)(self.model.config)
        model.load_state_dict({key.removeprefix("model."): weights[key] for key in weights})
        # Not in the configuration: its ids may end an answer that the configuration's do not.
        model.generation_config = self.model.generation_config
        return model.to(self.accelerator.device).eval()

    def _answer_share(self, model: Any, rank: int, world: int) -> Iterator[Answer]:
        """Asks the questions of one process among `world`, and yields the answers."""
        lm = self._lm(model)
        for task in self.tasks:
            for batch in generate_answers(lm, task.asked[rank::world], self.options.batch_size):
                for question, completion in batch:
                    yield task.benchmark.name, question.item.index, completion

    def _lm(self, model: Any) -> Any:
        """The model wrapped for lm-eval, with a copy of the tokenizer."""
        from vocagno.evaluation._prompted import PromptedModel

        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of models that are there
        # It chooses a token for padding; the tokenizer that is saved keeps its own.
        return PromptedModel(
            pretrained=model,
            tokenizer=copy.deepcopy(self.tokenizer),
            batch_size=self.options.batch_size,
        )

    def _grade(self, answers: list[Answer], step: int) -> dict[str, float]:
        """Grades the answers and writes the completions. Returns: `eval/NAME/METRIC`, 0 to 1."""
        completions = {(name, index): completion for name, index, completion in answers}
        verdicts = {}
        with Judge() as judge:
            for task in self.tasks:
                name, graded = task.benchmark.name, []
                items = [question.item for question in task.asked]
                # In the order of the file, not of the lengths by which the questions were asked.
                for item in sorted(items, key=lambda item: item.index):
                    completion = completions[name, item.index]
                    verdict = judge.verdict(task.benchmark, item, completion)
                    graded.append(Graded(item, completion, verdict))
                path = self.folder / f"step_{step}" / f"{name}.jsonl"
                write_verdicts(path, graded, with_completions=True)
                verdicts[name] = [answer.verdict for answer in graded]
        shares = by_metric(verdicts)
        return {
            f"eval/{name}/{metric}": round(shares[metric][name].value, 6)
            for name in verdicts
            for metric in METRICS
        }

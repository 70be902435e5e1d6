"""Worked examples before a question (few-shot), and their sources."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vocagno.evaluation.benchmarks import Benchmark
from vocagno.evaluation.reading import BenchmarkError
from vocagno.system.files import digest

BETWEEN = "\n\n\n"
"""Between two examples, and before the question."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The worked examples of a benchmark."""

    text: str
    source: str
    """Where they were read from."""

    def prompt(self, benchmark: Benchmark, question: str) -> str:
        """The prompt for a question."""
        return f"{self.text}{BETWEEN}{benchmark.asked(question)}"


def prompt_hash(prompt: str) -> str:
    """Hash of a prompt, 32 hexadecimal digits."""
    return digest(prompt)


def read_examples(benchmark: Benchmark, data: Path) -> Examples:
    """The examples from `prompts/cot/NAME.md` in the data folder or next to it, as in the paper's
    harness; else those that lm-eval includes.

    Raises: BenchmarkError if there are none.
    """
    name = f"prompts/cot/{benchmark.prompt}.md"
    for path in (data / name, data.absolute().parent / name):
        if path.is_file():
            try:
                return Examples(path.read_text(encoding="utf-8").strip(), str(path))
            except UnicodeDecodeError as error:
                raise BenchmarkError(f"{path}: not UTF-8 ({error})") from error
    if benchmark.prompt not in _CARRIED:
        raise BenchmarkError(
            f"{data / name}: no such file; expected the {benchmark.shots} worked examples of "
            f"{benchmark.name}; lm-eval has only those of {' and '.join(_CARRIED)}"
        )
    return Examples(BETWEEN.join(_CARRIED[benchmark.prompt](benchmark)), "lm-eval")


def _of_gsm8k(benchmark: Benchmark) -> list[str]:
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml"
    samples = yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    return [f"{benchmark.asked(sample['question'])} {sample['target']}" for sample in samples]


def _of_math(benchmark: Benchmark) -> list[str]:
    from lm_eval.tasks.minerva_math.utils import list_fewshot_samples

    return [
        f"{benchmark.asked(sample['problem'])}\n{sample['solution']}"
        for sample in list_fewshot_samples()
    ]


_CARRIED: dict[str, Callable[[Benchmark], list[str]]] = {
    "gsm8k": _of_gsm8k,
    "minerva_math": _of_math,
}

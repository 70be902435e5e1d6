"""Options of the benchmarks that a run asks its student at intervals."""

from dataclasses import dataclass, field

from vocagno.config.option_types import check_types
from vocagno.errors import require, require_at_least


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Benchmarks in training."""

    every: int | None = None
    """Steps between evaluations, with one more at the end; null: none."""
    data: str | None = None
    """Folder of NAME/test.jsonl and prompts/cot/NAME.md, as `vocagno eval --data`."""
    tasks: list[str] = field(default_factory=lambda: ["gsm8k"])
    """Benchmarks by name."""
    limit: int | None = 100
    """Items of each, from the first on; null: all."""
    batch_size: int = 8
    """Prompts that a process puts to the student at a time."""
    new_tokens: int = 256
    """The most that an answer may have; the benchmarks as the paper has them allow 1,024."""

    def __post_init__(self) -> None:
        check_types("eval", self)
        require_at_least(1, "eval", self, "every", "limit", "batch_size", "new_tokens")
        require(
            self.every is None or self.data is not None,
            "eval.data: the folder of the benchmarks is needed with eval.every",
        )
        require(bool(self.tasks), "eval.tasks: expected at least one benchmark")

"""Options of the benchmarks that a run asks its student now and then."""

from dataclasses import dataclass, field

from vocagno.errors import require


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
        for name in ("every", "limit", "batch_size", "new_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"eval.{name} must be at least 1, got {value}")
        require(
            self.every is None or self.data is not None,
            "eval.data: the folder of the benchmarks is needed with eval.every",
        )
        require(bool(self.tasks), "eval.tasks: expected at least one benchmark")

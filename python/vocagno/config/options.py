"""The options of a run, as dataclasses that jsonargparse fills from files and the command line."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.option_types import check_types
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import require, require_at_least

_MOST_SEED = 2**31 - 1
"""Largest seed: NumPy takes 32 bits, and each process adds its number."""
_CANDIDATES = (8, True)
"""Default of `distill`: the number of candidates, and whether they are sampled."""
_UNSAMPLED = (16, False)
"""Default of `distill` for servers and vLLM, which only name the likeliest ids, and where
`teacher.sampled` is false."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training loop: its steps, its batches, and what it writes and when."""

    steps: int
    """Optimizer steps of the whole run."""
    global_batch: int = 8
    """Rows of an optimizer step, over all processes."""
    micro_batch: int = 8
    """Rows of one forward pass of one process."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: mixed precision, with weights and losses in float32."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers, and compute the rest again in the backward pass."""
    compile: bool = False
    """Compile the decoder layers (torch.compile); equal ones share the result."""
    seed: int = 0
    """Seed of new weights and of the order of the rows."""
    log_every: int = 10
    """Steps between lines of `metrics.jsonl`."""
    eval_every: int = 100
    """Steps between validations; one more at the end."""
    checkpoint_every: int = 500
    """Steps between checkpoints, from which a run resumes."""
    keep_checkpoints: int = 2
    """The number of checkpoints that are kept; older ones are removed."""
    sample_every: int | None = None
    """Steps between pages that show what the teacher chose (`samples/step_N.html`); null: none."""
    log_with: list[Literal["tensorboard", "wandb", "trackio"]] = field(default_factory=list)
    """Trackers that get the lines of `metrics.jsonl`; each needs its own package."""
    project: str = "vocagno"
    """Name under which the trackers group the runs that belong together."""
    collective_timeout: float = 1800.0
    """Seconds that a process waits for the others in a step before it stops, at least 1. Benchmarks
    in training may take longer."""

    def __post_init__(self) -> None:
        check_types("train", self)
        batches = ("steps", "global_batch", "micro_batch")
        intervals = ("log_every", "eval_every", "checkpoint_every", "sample_every")
        limits = ("keep_checkpoints", "collective_timeout")
        require_at_least(1, "train", self, *batches, *intervals, *limits)
        require_at_least(0, "train", self, "seed")
        require(
            self.seed <= _MOST_SEED, f"train.seed must be at most {_MOST_SEED}, got {self.seed}"
        )

    def accumulation(self, num_processes: int) -> int:
        """Returns the number of forward passes of each process in one optimizer step.
        Raises: ConfigError if the processes cannot share `global_batch` evenly."""
        rows = self.micro_batch * num_processes
        require(
            self.global_batch % rows == 0,
            f"train.global_batch {self.global_batch} is not a multiple of train.micro_batch "
            f"{self.micro_batch} x {num_processes} processes",
        )
        return self.global_batch // rows


Schedule = Literal["cosine", "linear", "wsd", "constant"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and the schedule of its learning rate."""

    lr: float = 8e-5
    """Highest learning rate."""
    min_lr: float = 8e-6
    """Learning rate of the last step; `constant` has none."""
    warmup_steps: int = 0
    """Steps in which the rate rises linearly to `lr`."""
    schedule: Schedule = "cosine"
    """After the warm-up, down to `min_lr`: half a cosine; a line (`linear`); `lr` until the last
    fifth of all steps, then a line (`wsd`: warm-up, stable, decay); or `lr` to the end
    (`constant`)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the means of the gradient and of its square."""
    eps: float = 1e-8
    """Added to the root of the mean square that the gradient's mean is divided by."""
    weight_decay: float = 0.1
    """Decoupled; of matrices only (not of norms and biases)."""
    max_grad_norm: float | None = 1.0
    """Clipping of the norm of the gradient of a step; null: none."""

    def __post_init__(self) -> None:
        check_types("optimizer", self)
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optimizer.betas must be in [0, 1), got {self.betas}",
        )
        require_at_least(0, "optimizer", self, "eps", "weight_decay", "warmup_steps")
        require(self.lr > 0, f"optimizer.lr must be positive, got {self.lr}")
        require(
            0 <= self.min_lr <= self.lr,
            f"optimizer.min_lr must be in [0, lr = {self.lr}], got {self.min_lr}",
        )
        require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            f"optimizer.max_grad_norm must be positive or null, got {self.max_grad_norm}",
        )


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """The model that is trained."""

    model: str | None = None
    """Folder or hub name of a causal language model to continue from."""
    architecture: dict[str, Any] | None = None
    """Instead of `model`: a new one, as the fields of its transformers config (with model_type)."""
    tokenizer: str | None = None
    """tokenizer.json, .json.gz or folder; default: that of `model`."""
    eos: str | None = None
    """Token put after every document; default: the tokenizer's own."""

    def __post_init__(self) -> None:
        check_types("student", self)
        require(
            (self.model is None) != (self.architecture is None),
            "student: give either `student.model` (to train on) or `student.architecture` (new)",
        )
        require(
            self.tokenizer is not None or self.model is not None,
            "student.tokenizer: needed with `student.architecture`",
        )
        require(
            self.architecture is None or "model_type" in self.architecture,
            "student.architecture: needs a `model_type`, for example llama",
        )

    @property
    def tokenizer_source(self) -> str:
        return str(self.tokenizer or self.model)


_LONGEST_CYCLE = 100_000
"""Most rows after which the order of the corpora may repeat."""


def row_counts(weights: Mapping[str, float]) -> dict[str, int]:
    """Returns how many rows of each corpus one cycle has: the smallest whole numbers in the ratio
    of the weights.

    `{a: 0.7, b: 0.2, c: 0.1}` gives `{a: 7, b: 2, c: 1}`.

    Raises: ConfigError for a weight that is not positive and finite, or weights whose cycle is
        longer than `_LONGEST_CYCLE`.
    """
    require(bool(weights), "data.train: names no corpus")
    for name, weight in weights.items():
        is_valid = math.isfinite(weight) and weight > 0
        require(is_valid, f"data.train: the weight of {name} must be positive, got {weight}")
    # By way of its text: 0.1 means a tenth, not the binary number nearest to it.
    exact = [Fraction(str(weight)) for weight in weights.values()]
    scale = math.lcm(*(weight.denominator for weight in exact))
    counts = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    require(
        sum(counts) <= _LONGEST_CYCLE,
        f"data.train: the weights {', '.join(map(str, weights.values()))} are the ratio of whole "
        f"numbers with a sum of {sum(counts):,}; at most {_LONGEST_CYCLE:,}: round them",
    )
    return dict(zip(weights, counts, strict=True))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text that is trained on and held out, and how it becomes rows."""

    train: dict[str, float] | str
    """JSON Lines (plain, .gz, .zst) or Parquet with a `text`, or a `prompt` and a `completion`;
    text files; a folder of these; any of them at an address (s3://, hf://); or
    datasets:NAME[:CONFIG[:SPLIT]]. Several: a mapping of each to its weight, its part of the
    rows."""
    rows: Path | list[Path] | None = None
    """A finished store of rows of `train` to use, or several, one for each corpus; default: those
    in the cache, made where missing. With `teacher.scores`, too, `train` is read only for
    `train.sample_every`."""
    validation: dict[str, str] | str | None = None
    """Held-out text, in any form of `train`: its mean loss is logged. Several: a mapping of names
    to them."""
    seq_len: int = 2048
    """Predicted tokens of a row."""
    isolate: bool = False
    """true: attention stops at document borders. false: it crosses them. true is refused for models
    with layers that read across them anyway, and for sliding windows shorter than a row."""
    cache: Path = Path(".cache/vocagno")
    """Folder of prepared rows, teacher scores and (for a live teacher) texts, by the hashes of
    their sources."""
    max_refused: float = 0.001
    """Share of the documents of a corpus that may be omitted, because their tokens cannot be
    placed in the text; up to ten always may, but with 0 none. The store names them in
    `refused.jsonl`."""
    num_workers: int = 0
    """Processes that load and align for each training process."""

    def __post_init__(self) -> None:
        check_types("data", self)
        require_at_least(1, "data", self, "seq_len")
        require_at_least(0, "data", self, "num_workers")
        require(
            0 <= self.max_refused <= 1,
            f"data.max_refused must be in [0, 1], got {self.max_refused}",
        )
        row_counts(self.corpora)
        num_stores, num_corpora = len(self.row_stores), len(self.corpora)
        require(
            num_stores in (0, num_corpora),
            f"data.rows: {num_stores} stores for {num_corpora} corpora (data.train); name one for "
            "each, or none",
        )
        require(self.validation != {}, "data.validation: names no corpus")

    @property
    def corpora(self) -> dict[str, float]:
        """The corpora that are trained on, each with its weight."""
        return {self.train: 1.0} if isinstance(self.train, str) else self.train

    @property
    def held_out(self) -> dict[str, str]:
        """The held-out corpora by name; a single one without a name has its address for one."""
        corpora = self.validation or {}
        return {corpora: corpora} if isinstance(corpora, str) else corpora

    @property
    def row_stores(self) -> list[Path]:
        """`rows` as a list; empty for those in the cache."""
        return self.rows if isinstance(self.rows, list) else [self.rows] if self.rows else []

    @property
    def one_corpus(self) -> str:
        """`train`, where only one can be used. Raises: ConfigError if there are several."""
        return _only(list(self.corpora), "data.train")

    @property
    def one_held_out(self) -> str:
        """`validation`, where one is needed. Raises: ConfigError if there is none, or several."""
        return _only(list(self.held_out.values()), "data.validation")


def _only(corpora: list[str], option: str) -> str:
    """Returns the corpus of a list of one. Raises: ConfigError for any other number."""
    require(len(corpora) == 1, f"{option}: needs one corpus here, got {len(corpora)}")
    return corpora[0]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Benchmarks in training."""

    every: int | None = None
    """Steps between evaluations, with one more at the end; null: none."""
    data: str | None = None
    """Folder of NAME/test.jsonl and prompts/cot/NAME.md, which `vocagno eval --data` takes, too."""
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


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run."""

    student: StudentConfig
    data: DataConfig
    train: TrainConfig
    resume: Literal["auto", "never"] = "auto"
    """auto: resume from the last checkpoint in `output`; never: stop if there is one."""
    output: Path
    """Folder of the run: resolved configuration, metrics, checkpoints, final model."""
    push_to_hub: str | None = None
    """Repository of the Hugging Face hub to upload the final model to, with its card."""
    hub_private_repo: bool = True
    """true: a repository that `push_to_hub` creates is private."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        check_types("", self)
        teacher, guidance = self.teacher, self.guidance
        if guidance.needs_candidates:
            require(
                teacher.names_tokenizer,
                "teacher.tokenizer: guidance.method: distill reads ids of the teacher's in the "
                "scores; name the tokenizer that they were made with",
            )
            require(
                not (guidance.needs_entropy and (teacher.server or teacher.engine == "vllm")),
                "guidance.distill_where: surer needs the entropy of the teacher's distribution, "
                "which a server and vLLM do not give; set guidance.distill_where: all",
            )
            if not (teacher.candidates or teacher.scores):
                cannot_sample = teacher.server or teacher.engine == "vllm"
                is_unsampled = cannot_sample or teacher.sampled is False
                count, sampled = _UNSAMPLED if is_unsampled else _CANDIDATES
                teacher = replace(teacher, candidates=count, sampled=sampled)
                object.__setattr__(self, "teacher", teacher)
        require(
            guidance.needs_candidates or not teacher.also,
            "teacher.also: is for guidance.method: distill; other methods have one teacher",
        )
        require(
            not guidance.needs_teacher or bool(teacher.model or teacher.server or teacher.scores),
            "teacher.model: guidance needs a teacher (or its finished scores, `teacher.scores`)",
        )
        require(
            not guidance.needs_teacher or teacher.mode == "stored" or teacher.model is not None,
            "teacher.model: teacher.mode: live needs one",
        )
        require(
            teacher.mode == "live" or not guidance.needs_live_teacher,
            f"guidance.{'criterion' if guidance.selects else 'method'}: needs more of the teacher "
            "than its stored losses; use teacher.mode: live",
        )
        teacher.scores_of(len(self.data.corpora))
        at_random = "" if guidance.selection == "teacher" else " at random"
        require(
            self.chooses_tokens or self.train.sample_every is None,
            "train.sample_every: shows what the teacher chose, and with guidance.method: "
            f"{guidance.method}{at_random} it chooses nothing",
        )
        require(
            self.optimizer.warmup_steps <= self.train.steps,
            f"optimizer.warmup_steps {self.optimizer.warmup_steps} is more than train.steps "
            f"{self.train.steps}",
        )

    @property
    def has_live_teacher(self) -> bool:
        """True if a teacher reads the rows during training."""
        return self.guidance.needs_teacher and self.teacher.mode == "live"

    @property
    def chooses_tokens(self) -> bool:
        """True if the teacher chooses the tokens that train."""
        return self.guidance.selects and self.guidance.needs_teacher

    def as_options(self) -> dict[str, Any]:
        """Returns every option by its full name (`train.steps`)."""
        return _flat(asdict(self))


_MAPPINGS = ("student.architecture", "data.train", "data.validation")
"""Options whose value may be a mapping, and is then not a group of options."""


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested options into one mapping of full names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and prefix + name not in _MAPPINGS:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat

"""The options of a run, as dataclasses that jsonargparse fills from files and the command line."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from vocagno.config.evaluation import EvaluationConfig
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.mixture import row_counts
from vocagno.errors import require, require_at_least

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Batching = Literal["auto", "packed", "buckets"]
Protocol = Literal["vllm", "openai", "sglang"]
Engine = Literal["transformers", "vllm"]
_HERE = ("gguf_file", "attention", "device_map", "tensor_parallel")
"""Options of a teacher that transformers loads in this process."""
HeadLoss = Literal["auto", "loop", "torch", "liger"]
Schedule = Literal["cosine", "linear", "wsd", "constant"]


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
        """Where the tokenizer comes from."""
        return str(self.tokenizer or self.model)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The model that says which tokens are worth learning, or the scores that it left behind."""

    model: str | None = None
    """Folder or hub name of a causal language model."""
    gguf_file: str | None = None
    """Name of a GGUF file in `model`, if the weights are in one."""
    tokenizer: str | None = None
    """tokenizer.json, .json.gz or folder; default: that of `model`."""
    bos: str | None = None
    """Token put before every document if the tokenizer puts none itself."""
    mode: Literal["stored", "live"] = "stored"
    """stored: the teacher scores whole documents once, before training. live: it reads each piece
    of a row during training, in every epoch again."""
    scores: Path | list[Path] | None = None
    """A finished store of scores to use, or several, one for each corpus of `data.train`; default:
    those in the cache, made where missing."""
    dtype: Dtype = "auto"
    """Type of the weights; auto: bfloat16 on CUDA, float32 on CPU."""
    context: int = 2048
    """Longest run of tokens given to the teacher at once."""
    min_context: int = 0
    """In documents longer than `context`, tokens that every scored token has before it at least; 0
    stands for a quarter of `context`."""
    batch_tokens: int = 8192
    """Tokens of one forward pass, padding included."""
    batching: Batching = "auto"
    """packed: documents follow one another in a row. buckets: one document a row, similar lengths
    together. auto: packed if the attention takes boundaries (flash attention)."""
    attention: str | None = None
    """Attention implementation, as transformers names it; default: the model's own choice."""
    device_map: str | None = None
    """How a teacher too large for one device is spread (auto, balanced, ...); start one process."""
    tensor_parallel: bool = False
    """Whether all processes of a launch hold one teacher between them, each a part of every layer;
    otherwise each holds the teacher whole, and they share the corpus."""
    server: str | None = None
    """URL of a server that has the model, which is then named as it is there; needs `tokenizer`."""
    protocol: Protocol = "vllm"
    """What the server speaks: vllm (completions with `prompt_logprobs`), sglang (`/generate`), or
    openai (completions with `echo` and `logprobs`)."""
    requests: int = 32
    """Requests to the server under way at once."""
    engine: Engine = "transformers"
    """What computes the losses of `model` in this process. vllm needs vLLM, for one device; it
    forms its own batches of at most `batch_tokens`."""
    shard: bool = False
    """Whether a live teacher is spread over all processes, layer by layer (FSDP2), and gathered a
    layer at a time; otherwise each process holds it whole."""

    def __post_init__(self) -> None:
        require_at_least(2, "teacher", self, "context")
        require_at_least(1, "teacher", self, "batch_tokens")
        require(
            0 <= self.min_context < self.context,
            f"teacher.min_context must be in [1, {self.context}), or 0 for a quarter of it; got "
            f"{self.min_context}",
        )
        require(
            not (self.tensor_parallel and self.device_map),
            "teacher.tensor_parallel: excludes teacher.device_map; use one of them",
        )
        require_at_least(1, "teacher", self, "requests")
        live = self.mode == "live"
        require(
            self.server is None or self.tokenizer is not None,
            "teacher.server: needs teacher.tokenizer, that of the model on the server",
        )
        here = [name for name in _HERE if getattr(self, name)]
        require(
            self.server is None or not (here or live),
            f"teacher.server: excludes teacher.{(*here, 'mode: live')[0]}",
        )
        not_vllm = [name for name in (*_HERE, "server") if getattr(self, name)]
        not_vllm += ["mode: live"] * live
        not_vllm += [f"batching: {self.batching}"] * (self.batching != "auto")
        require(
            self.engine == "transformers" or not not_vllm,
            f"teacher.engine: {self.engine} excludes teacher.{(*not_vllm, '')[0]}",
        )
        require(not (live and self.scores), "teacher.scores: are for teacher.mode: stored")
        require(
            not (live and self.tensor_parallel),
            "teacher.tensor_parallel: is for scoring; a live teacher is spread by teacher.shard",
        )
        require(
            not self.shard or (live and not self.device_map),
            "teacher.shard: is for teacher.mode: live, without teacher.device_map",
        )

    def scores_of(self, num_corpora: int) -> list[Path | None]:
        """The store of each corpus: one for all, or one for each; None for the cache.

        Raises: ConfigError for another number of stores.
        """
        if not isinstance(self.scores, list):
            return [self.scores] * num_corpora
        require(
            len(self.scores) == num_corpora,
            f"teacher.scores: {len(self.scores)} stores for {num_corpora} corpora (data.train); "
            "name one for all, or one for each in their order",
        )
        return list(self.scores)

    @property
    def context_before(self) -> int:
        """`min_context`, or what its 0 stands for. No field: a default that was worked out from
        the default `context` would contradict another one given on the command line."""
        return self.min_context or max(1, self.context // 4)

    @property
    def names_tokenizer(self) -> bool:
        """Whether the teacher's tokenizer is known, not only its scores."""
        return self.tokenizer is not None or self.model is not None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text."""

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
    """The same as `train`, held out: its mean loss is logged. Several: a mapping of names to them.
    """
    seq_len: int = 2048
    """Predicted tokens of a row."""
    isolate: bool = False
    """Whether attention stops at document borders (default: it crosses them). Refused for models
    with layers that read across them anyway, and for sliding windows shorter than a row."""
    cache: Path = Path(".cache/vocagno")
    """Folder of prepared rows, teacher scores and (for a live teacher) texts, by the hashes of
    their sources."""
    num_workers: int = 0
    """Processes that load and align for each training process."""

    def __post_init__(self) -> None:
        require_at_least(1, "data", self, "seq_len")
        require_at_least(0, "data", self, "num_workers")
        row_counts(self.corpora)
        given, wanted = len(self.row_stores), len(self.corpora)
        require(
            given in (0, wanted), f"data.rows: {given} stores for {wanted} corpora (data.train)"
        )
        require(self.validation != {}, "data.validation: names no corpus")

    @property
    def corpora(self) -> dict[str, float]:
        """What is trained on, with its weights."""
        return {self.train: 1.0} if isinstance(self.train, str) else self.train

    @property
    def held_out(self) -> dict[str, str]:
        """What is held out, by name; one that has none is named as it is found."""
        found = self.validation or {}
        return {found: found} if isinstance(found, str) else found

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


def _only(found: list[str], option: str) -> str:
    require(len(found) == 1, f"{option}: needs one corpus here, got {len(found)}")
    return found[0]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and the schedule of its learning rate."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw: torch's; on CUDA one kernel updates all weights (`fused`). adamw_8bit: torchao's; its
    state has 2 bytes a weight, not 8; needs `vocagno[torchao]`, and a C++ compiler on CPU."""
    lr: float = 8e-5
    """Highest learning rate."""
    min_lr: float = 8e-6
    """Learning rate of the last step."""
    warmup_steps: int = 0
    """Steps in which the rate rises linearly to `lr`."""
    schedule: Schedule = "cosine"
    """After the warm-up, down to `min_lr`: half a cosine; a line (`linear`); `lr` until the last
    `decay_steps`, then a line (`wsd`: warm-up, stable, decay); or `lr` to the end (`constant`)."""
    decay_steps: int | None = None
    """Steps of the decay of `wsd`; default: a fifth of all steps."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Decoupled; of matrices only (not of norms and biases)."""
    max_grad_norm: float | None = 1.0
    """Clipping of the norm of the gradient of a step; null: none."""
    skip_nonfinite: bool = False
    """Skip and count steps with a NaN or infinite gradient, instead of stopping. Costs a device
    sync per step."""

    def __post_init__(self) -> None:
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optimizer.betas must be in [0, 1), got {self.betas}",
        )
        require_at_least(0, "optimizer", self, "eps", "weight_decay", "warmup_steps")
        require(
            self.decay_steps is None or self.schedule == "wsd",
            f"optimizer.decay_steps: of schedule wsd, not of {self.schedule}",
        )
        require(
            self.decay_steps is None or self.decay_steps > 0,
            f"optimizer.decay_steps must be positive, got {self.decay_steps}",
        )
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
class TrainConfig:
    """The loop."""

    steps: int
    """Optimizer steps of the whole run."""
    global_batch: int = 8
    """Rows of an optimizer step, over all processes."""
    micro_batch: int = 8
    """Rows of one forward pass of one process."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: mixed precision, with weights and losses in float32."""
    head_loss: HeadLoss = "auto"
    """What computes the language head and its loss in chunks: our loop, torch's op or liger-kernel
    (CUDA; the host waits in each step); auto: what was fastest where it was measured, the loop."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers, and compute the rest again in the backward pass."""
    compile: bool = False
    """Compile the decoder layers (torch.compile); equal ones share the result."""
    profile_steps: int = 0
    """Steps that torch.profiler traces, after two others, into `profile` in `output`; 0: none."""
    seed: int = 0
    """Of new weights and of the order of the rows."""
    log_every: int = 10
    eval_every: int = 100
    """Steps between validations; one more at the end."""
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    sample_every: int | None = None
    """Steps between pages that show what the teacher chose (`samples/step_N.html`); null: none."""
    log_with: list[Literal["tensorboard", "wandb", "trackio"]] = field(default_factory=list)
    """Trackers that get the lines of `metrics.jsonl`; each needs its own package."""
    project: str = "vocagno"
    """What the trackers call the runs that belong together."""
    spike_ratio: float = 1.5
    """A step's loss this many times that of the window before is logged with its documents."""
    collective_timeout: float = 1800.0
    """Seconds that a process waits for the others in a step before it stops. Benchmarks in training
    may take longer."""

    def __post_init__(self) -> None:
        batches = ("steps", "global_batch", "micro_batch")
        intervals = ("log_every", "eval_every", "checkpoint_every", "sample_every")
        require_at_least(1, "train", self, *batches, *intervals, "keep_checkpoints")
        require_at_least(0, "train", self, "seed", "profile_steps")
        require(self.spike_ratio > 1, f"train.spike_ratio must be above 1, got {self.spike_ratio}")

    def accumulation(self, num_processes: int) -> int:
        """Forward passes of each process in one optimizer step."""
        rows = self.micro_batch * num_processes
        require(
            self.global_batch % rows == 0,
            f"train.global_batch {self.global_batch} is not a multiple of train.micro_batch "
            f"{self.micro_batch} x {num_processes} processes",
        )
        return self.global_batch // rows


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
    """Whether a repository that `push_to_hub` creates is private."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        teacher, guidance = self.teacher, self.guidance
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
        is_loop = self.train.head_loss in ("auto", "loop")
        require(
            not guidance.needs_distributions or is_loop,
            f"train.head_loss: {self.train.head_loss} computes only cross-entropy; use loop with "
            f"guidance.method: {guidance.method}",
        )
        require(
            not (guidance.selects and guidance.has_soft_weights) or is_loop,
            f"train.head_loss: {self.train.head_loss} has no weights of tokens; use loop with "
            "guidance.weight and guidance.min_weight",
        )
        teacher.scores_of(len(self.data.corpora))
        at_random = "" if guidance.selection == "teacher" else " at random"
        require(
            (guidance.selects and guidance.needs_teacher) or self.train.sample_every is None,
            "train.sample_every: shows what the teacher chose, and with guidance.method: "
            f"{guidance.method}{at_random} it chooses nothing",
        )
        require(
            self.optimizer.warmup_steps <= self.train.steps,
            f"optimizer.warmup_steps {self.optimizer.warmup_steps} is more than train.steps "
            f"{self.train.steps}",
        )

    @property
    def draws_samples(self) -> bool:
        """Whether the run draws what the teacher chose of some documents: at its end, if the text
        is at hand, or as `train.sample_every` wants."""
        chooses = self.guidance.selects and self.guidance.needs_teacher
        reads_text = not (self.data.rows and self.teacher.scores)
        return chooses and (reads_text or self.train.sample_every is not None)

    def as_options(self) -> dict[str, Any]:
        """Every option by its full name (`train.steps`)."""
        return _flat(asdict(self))


_MAPPINGS = ("student.architecture", "data.train", "data.validation")
"""Options whose value may be a mapping."""


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and prefix + name not in _MAPPINGS:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat

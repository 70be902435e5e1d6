"""Options of the teacher: the model and how it reads a corpus, or the scores that it left."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vocagno.config.option_types import check_types
from vocagno.errors import require, require_at_least

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Batching = Literal["auto", "packed", "buckets"]
Protocol = Literal["vllm", "openai", "sglang"]
Engine = Literal["transformers", "vllm"]
MOST_CANDIDATES = 255
"""Largest number of candidates of a token."""
_IN_PROCESS = ("gguf_file", "attention", "device_map", "tensor_parallel", "sampled")
"""Options of a teacher that transformers loads in this process."""
_IN_BATCHES = ("dtype", "batch_tokens", "batching")
"""Options that a server has set for itself."""
_OF_SERVER = ("protocol", "requests")
"""Options of a teacher on a server."""
_OF_TEXTS = ("bos", "context", "min_context", "batching")
"""Options of a teacher that reads texts."""


@dataclass(frozen=True, kw_only=True)
class FurtherTeacher:
    """A teacher whose scores with candidates `guidance.method: distill` adds to the first one's."""

    scores: Path | list[Path]
    """A finished store of its scores, or several, one for each corpus of `data.train`."""
    tokenizer: str
    """Its tokenizer: tokenizer.json, .json.gz or folder."""
    share: float = 1.0
    """Its weight next to the first teacher, which counts 1; above 0."""


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
    """Token put before every document by a tokenizer that puts none itself; default: the
    `bos_token` of its tokenizer_config.json, if that sets `add_bos_token`. Empty: none."""
    mode: Literal["stored", "live"] = "stored"
    """stored: the teacher scores whole documents once, before training. live: it reads each piece
    of a row during training, in every epoch again."""
    scores: Path | list[Path] | None = None
    """A finished store of scores to use, or several, one for each corpus of `data.train`; default:
    those in the cache, made where missing."""
    candidates: int = 0
    """Ids kept of each teacher token, with their log-probabilities, at most 255: the likeliest."""
    sampled: bool | None = None
    """true: some of the ids are drawn from the less likely ones, so that the student learns from
    the probability of any id. null: true only where guidance.method: distill sets `candidates`."""
    also: list[FurtherTeacher] | None = None
    """Further teachers, for guidance.method: distill; their scores are of the same corpora."""
    dtype: Dtype = "auto"
    """Type of the weights; auto: bfloat16 on CUDA, float32 on CPU."""
    context: int = 2048
    """Longest run of tokens given to the teacher at once. `rho1` and `kld` with a live teacher read
    rows of `data.seq_len` instead."""
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
    """Spreads a teacher too large for one device (auto, balanced, ...); start one process."""
    tensor_parallel: bool = False
    """true: all processes of a launch hold one teacher between them, each a part of every layer.
    false: each process holds the teacher whole, and they share the corpus."""
    server: str | None = None
    """URL of a server that has the model, which is then named as it is there; needs `tokenizer`."""
    protocol: Protocol = "vllm"
    """Protocol of the server: vllm (completions with `prompt_logprobs`), sglang (`/generate`), or
    openai (completions with `echo` and `logprobs`)."""
    requests: int = 32
    """Requests to the server under way at once."""
    engine: Engine = "transformers"
    """Library that computes the losses of `model` in this process. vllm needs vLLM, for one device;
    it forms its own batches of at most `batch_tokens`."""
    shard: bool = False
    """true: a live teacher is spread over all processes, layer by layer (FSDP2), and gathered a
    layer at a time. false: each process holds it whole."""

    def __post_init__(self) -> None:
        check_types("teacher", self)
        require_at_least(2, "teacher", self, "context")
        require_at_least(1, "teacher", self, "batch_tokens", "requests")
        require(
            0 <= self.candidates <= MOST_CANDIDATES,
            f"teacher.candidates must be in [0, {MOST_CANDIDATES}], got {self.candidates}",
        )
        require(
            0 <= self.min_context < self.context,
            f"teacher.min_context must be in [1, {self.context}), or 0 for a quarter of it; got "
            f"{self.min_context}",
        )
        require(
            not (self.tensor_parallel and self.device_map),
            "teacher.tensor_parallel: excludes teacher.device_map; use one of them",
        )
        require(
            not (self.candidates and self.server and self.protocol == "openai"),
            "teacher.candidates: a server of teacher.protocol: openai names candidates by their "
            "text, not by id; use teacher.protocol: vllm or sglang",
        )
        for further in self.also or []:
            check_types("teacher.also", further)
            require(further.share > 0, f"teacher.also.share: must be above 0, got {further.share}")
        live = self.mode == "live"
        require(
            self.server is None or self.tokenizer is not None,
            "teacher.server: needs teacher.tokenizer, that of the model on the server",
        )
        in_process = [name for name in _IN_PROCESS if getattr(self, name)]
        require(
            self.server is None or not (in_process or live),
            f"teacher.server: excludes teacher.{(*in_process, 'mode: live')[0]}; omit one of them",
        )
        require(
            not self.bos or self.names_tokenizer,
            "teacher.bos: needs teacher.model or teacher.tokenizer, whose token it is",
        )
        not_vllm = [name for name in (*_IN_PROCESS, "server") if getattr(self, name)]
        not_vllm += ["mode: live"] * live
        not_vllm += [f"batching: {self.batching}"] * (self.batching != "auto")
        require(
            self.engine == "transformers" or not not_vllm,
            f"teacher.engine: {self.engine} excludes teacher.{(*not_vllm, '')[0]}; omit one of "
            "them",
        )
        for name in ("scores", "also"):
            require(
                not (live and getattr(self, name)),
                f"teacher.{name}: are for teacher.mode: stored; omit them, or set that mode",
            )
        require(
            not (live and self.tensor_parallel),
            "teacher.tensor_parallel: is for scoring; a live teacher is spread by teacher.shard",
        )
        require(
            not self.shard or (live and not self.device_map),
            "teacher.shard: is for teacher.mode: live, without teacher.device_map",
        )

    @property
    def warning(self) -> str | None:
        """Names the options without an effect; None if there are none."""
        if self.server is None:
            return self._without_effect(_OF_SERVER, "only of teacher.server")
        return self._without_effect(_IN_BATCHES, "of a teacher in this process")

    def warning_of_rows(self, method: str) -> str | None:
        """Names the options without an effect on a live teacher that reads the student's rows as
        they are, as the method needs; None if there are none."""
        reason = (
            f"under guidance.method: {method} a live teacher reads the student's rows as they are"
        )
        return self._without_effect(_OF_TEXTS, reason)

    def _without_effect(self, names: Sequence[str], reason: str) -> str | None:
        """A sentence that names those of some options that are set; None if none is."""
        changed = [name for name in names if getattr(self, name) != getattr(TeacherConfig, name)]
        if not changed:
            return None
        options = ", ".join(f"teacher.{name}" for name in changed)
        return f"{options}: without effect here: {reason}"

    def scores_of(self, num_corpora: int) -> list[Path | None]:
        """Returns the store of each corpus, or None for one in the cache.
        Raises: ConfigError if there are several stores, but not one for each corpus."""
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
        """Tokens that every scored token has before it at least: `min_context`, or a quarter of
        `context` if that is 0."""
        # Not filled in by `__post_init__`: a file of options that was made from the default
        # `context` would contradict a `context` on the command line.
        return self.min_context or max(1, self.context // 4)

    @property
    def names_tokenizer(self) -> bool:
        """True if the options name the teacher's tokenizer, and not only its scores."""
        return self.tokenizer is not None or self.model is not None

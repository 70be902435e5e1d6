"""Options of the teacher: the model, how it reads, or the scores that it left."""

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
_HERE = ("gguf_file", "attention", "device_map", "tensor_parallel", "sampled")
"""Options of a teacher that transformers loads in this process."""


@dataclass(frozen=True, kw_only=True)
class FurtherTeacher:
    """A teacher whose scores with candidates `guidance.method: distill` adds to the first one's."""

    scores: Path | list[Path]
    """As `teacher.scores`."""
    tokenizer: str
    """As `teacher.tokenizer`."""
    share: float = 1.0
    """How much it counts, above 0; the first teacher counts 1."""


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
    candidates: int = 0
    """Ids kept of each teacher token, with their log-probabilities, at most 255: the likeliest."""
    sampled: bool | None = None
    """Whether the less likely ones are drawn, so that the probability of any id is learnt from."""
    also: list[FurtherTeacher] | None = None
    """Further teachers, for guidance.method: distill; their scores are of the same corpora."""
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
        for one in self.also or []:
            check_types("teacher.also", one)
            require(one.share > 0, f"teacher.also.share: not above 0: {one.share}")
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
        for name in ("scores", "also"):
            require(
                not (live and getattr(self, name)), f"teacher.{name}: are for teacher.mode: stored"
            )
        require(
            not (live and self.tensor_parallel),
            "teacher.tensor_parallel: is for scoring; a live teacher is spread by teacher.shard",
        )
        require(
            not self.shard or (live and not self.device_map),
            "teacher.shard: is for teacher.mode: live, without teacher.device_map",
        )

    def scores_of(self, num_corpora: int) -> list[Path | None]:
        """The store of each corpus; None for the cache. Raises: ConfigError for another number."""
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

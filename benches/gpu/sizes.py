"""How large everything is: at full size for one GPU of 80 GB, or tiny for a rehearsal on a CPU."""

from dataclasses import dataclass
from typing import Any

TINYLLAMA = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
"""TinyLlama-1.1B, whole."""

QWEN_7B = {
    "model_type": "qwen2",
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
"""Qwen2.5-Math-7B."""

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
}
"""Small enough to be trained on a CPU too, to be compared."""

TINY = {
    "model_type": "llama",
    "vocab_size": 600,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A corpus that is drawn, and the tokenizers that are trained on it."""

    documents: int
    parts: int
    """Of the quickstart's documents in one."""
    student_ids: int
    teacher_ids: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the parts are made with."""

    student: dict[str, Any]
    teacher: dict[str, Any]
    text: Text
    small: dict[str, Any]
    """Of student and teacher in runs that a CPU must be able to follow; their ids are `few`'s."""
    few: Text
    rows: int
    """Of a micro-batch."""
    seq_len: int
    repeats: int
    batch_tokens: tuple[int, ...]
    """Of a teacher's forward pass, one after the other."""
    chunk_elements: tuple[int, ...]
    """Logits that exist at a time, one after the other."""
    distances: tuple[int, int]
    """Ids of a teacher for kld and for uld."""
    steps: int
    """Of the runs that are trained on both devices."""
    small_rows: int
    small_length: int


FULL = Sizes(
    student=TINYLLAMA,
    teacher=QWEN_7B,
    text=Text(documents=480, parts=4, student_ids=32_000, teacher_ids=48_000),
    rows=8,
    seq_len=2048,
    repeats=7,
    batch_tokens=(8_192, 16_384, 32_768),
    chunk_elements=(1 << 24, 1 << 26, 1 << 27),
    distances=(32_016, 152_064),
    small=SMALL,
    few=Text(documents=80, parts=4, student_ids=4_096, teacher_ids=8_192),
    steps=200,
    small_rows=8,
    small_length=256,
)

FEW = Text(documents=24, parts=3, student_ids=600, teacher_ids=900)
REHEARSAL = Sizes(
    student=TINY,
    teacher=TINY | {"model_type": "qwen2", "vocab_size": 900},
    text=FEW,
    small=TINY,
    few=FEW,
    rows=2,
    seq_len=64,
    repeats=1,
    batch_tokens=(128, 256),
    chunk_elements=(1 << 14, 1 << 16),
    distances=(616, 900),
    steps=4,
    small_rows=2,
    small_length=64,
)


def sizes(*, rehearse: bool) -> Sizes:
    return REHEARSAL if rehearse else FULL

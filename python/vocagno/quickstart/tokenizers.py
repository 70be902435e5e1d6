"""The quickstart's two tokenizers, of two families, trained on its own corpus in seconds.

The student's is SentencePiece-style BPE with byte fallback, like Llama-2's: a dummy prefix, `▁` for
a space, single digits, BOS in front. The teacher's is byte-level BPE, like Llama-3's: up to three
digits per token, twice the vocabulary, `<|endoftext|>` and no BOS.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

STUDENT_VOCABULARY = 1_024
TEACHER_VOCABULARY = 2_048

UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"
END_OF_TEXT = "<|endoftext|>"

STUDENT_ALPHABET = 88
"""Single characters in the student's vocabulary; rarer ones (ø, ⅔) become byte tokens."""

TEACHER_PIECES = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Merges stay within one of these: a word with its space, up to three digits, signs."""


def student_tokenizer(texts: Iterable[str], size: int = STUDENT_VOCABULARY) -> Tokenizer:
    """Trains SentencePiece-style BPE with byte fallback and `size` ids. It is lossless on any text,
    and puts a dummy prefix before it."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    special = [UNKNOWN, BOS, EOS]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(special) - len(byte_tokens),
        limit_alphabet=STUDENT_ALPHABET,
        show_progress=False,
    )
    # Line by line, so that no merge contains a line break, which becomes the byte token <0x0A>.
    learner.train_from_iterator((line for text in texts for line in text.splitlines()), trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)

    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate([*special, *byte_tokens, *pieces])},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token=UNKNOWN,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def teacher_tokenizer(texts: Iterable[str], size: int = TEACHER_VOCABULARY) -> Tokenizer:
    """Trains byte-level BPE with `size` ids. Every byte is a token, so no text is lost."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TEACHER_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_tokenizers(texts: Sequence[str], folder: Path) -> tuple[Path, Path]:
    """Trains both tokenizers on `texts` and writes `folder/student` and `folder/teacher`.

    Returns the two folders; each is loadable by `transformers.AutoTokenizer.from_pretrained`.
    Deterministic: the same texts give the same files.
    """
    paths = folder / "student", folder / "teacher"
    save_student_tokenizer(texts, paths[0])
    teacher = PreTrainedTokenizerFast(
        tokenizer_object=teacher_tokenizer(texts), eos_token=END_OF_TEXT
    )
    teacher.save_pretrained(paths[1])
    return paths


def save_student_tokenizer(
    texts: Iterable[str], folder: Path, size: int = STUDENT_VOCABULARY
) -> None:
    """Trains the student's tokenizer and writes it in transformers' form."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=student_tokenizer(texts, size),
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
    )
    tokenizer.save_pretrained(folder)

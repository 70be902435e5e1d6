"""Loads the tokenizer of a GGUF file, and refuses one that is not the model's.

transformers makes it from the file. Of the names of pre-tokenizers (`tokenizer.ggml.pre`) it knows
some; with any other, text is cut as by GPT-2, into tokens that the model has hardly seen.
"""

import warnings
from typing import Any

from vocagno.tokens.tokenizer_files import TokenizerError

_LIKE_GPT2 = frozenset(
    {"a.x-4.0", "gigachat", "gpt-2", "jais", "mellum", "mpt", "olmo", "phi-2", "trillion"}
)
"""Names of pre-tokenizers that cut as GPT-2's, which transformers takes for all that it does not
know. Source: `llm_tokenizer_bpe` of llama.cpp."""
_DIGITS_APART = frozenset(
    {"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"}
)
"""Names of pre-tokenizers that take each digit apart, and cut the rest as GPT-2's."""


def tokenizer_of_gguf(name: str, gguf_file: str) -> Any:
    """Loads the tokenizer of a GGUF file, or that of a tokenizer.json next to it, which
    transformers prefers.

    Args: name: the folder of the file, or a name on the hub.
    Returns: a tokenizer of transformers.
    Raises: TokenizerError for a pre-tokenizer that is not known, and for a tokenizer that gives
        tokens other ids than the file.
    """
    from gguf import GGUFReader
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    reader = GGUFReader(cached_file(name, gguf_file))
    tokenizer = AutoTokenizer.from_pretrained(name, gguf_file=gguf_file)
    neighbour = cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if neighbour is None and _field(reader, "model") == "gpt2":
        _set_pre_tokenizer(tokenizer, _field(reader, "pre"), gguf_file)
    tokens, ids = _field(reader, "tokens"), tokenizer.get_vocab()
    if tokens is None:  # transformers has taken the tokenizer.json next to the file
        return tokenizer
    num_other = sum(ids.get(token) != index for index, token in enumerate(tokens))
    ends = [_field(reader, f"{role}_token_id") for role in ("bos", "eos")]
    named = [end for end in ends if end is not None and 0 <= end < len(tokens)]
    lost = [tokens[end] for end in named if ids.get(tokens[end]) != end]
    # Names of reserved tokens may differ.
    if lost or num_other > len(tokens) / 10:
        which = f", {lost[0]!r} among them" if lost else ""
        source = "transformers makes of it" if neighbour is None else f"is next to it ({neighbour})"
        raise TokenizerError(
            f"{gguf_file}: {num_other:,} of its {len(tokens):,} tokens{which} have another id, or "
            f"none, in the tokenizer that {source}; put the tokenizer.json of the model that was "
            "converted next to it"
        )
    return tokenizer


def _set_pre_tokenizer(tokenizer: Any, pre: str | None, gguf_file: str) -> None:
    """Makes a byte-level tokenizer cut text as the file says.
    Raises: TokenizerError for a name that neither transformers nor this module knows."""
    from tokenizers import pre_tokenizers

    if pre in _DIGITS_APART:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        return
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # old releases choose by the architecture
        GGUF_PRE_TOKENIZER_SPLITS = None
    remedy = (
        "put the tokenizer.json of the model that was converted next to the file, or install a "
        "newer transformers"
    )
    # Files of old converters name none.
    if pre is None or (GGUF_PRE_TOKENIZER_SPLITS is None and pre not in _LIKE_GPT2):
        warnings.warn(
            f"{gguf_file}: whether its text is cut as by the model's own tokenizer is not known "
            f"(pre-tokenizer {pre}); {remedy}",
            stacklevel=4,
        )
    elif pre not in _LIKE_GPT2 and pre not in GGUF_PRE_TOKENIZER_SPLITS:
        raise TokenizerError(
            f"{gguf_file}: its pre-tokenizer, {pre}, is not known to transformers, which would cut "
            f"text as GPT-2 does; {remedy}"
        )


def _field(reader: Any, name: str) -> Any:
    """Reads a value of the file's tokenizer; None if it has none of this name."""
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return None if field is None else field.contents()

"""lm-eval's transformers model, changed so that no end-of-text token follows a prompt."""

from typing import Any

from lm_eval.models.huggingface import HFLM

from vocagno.errors import InputError

_PROBE = "Answer:"


class PromptedModel(HFLM):  # type: ignore[misc]  # it has no types
    """A transformers model that continues prompts. Tokens that its tokenizer adds before a text
    stay. Those that it adds after a text (`</s>`) are removed, because they would tell the model
    that the text has ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._suffix = suffix_ids(self.tokenizer)

    def tok_encode(
        self, string: str, *arguments: Any, left_truncate_len: int | None = None, **options: Any
    ) -> list[int]:
        ids: list[int] = super().tok_encode(string, *arguments, **options)
        return ids[self._kept_columns(ids, left_truncate_len)]

    def tok_batch_encode(
        self,
        strings: list[str],
        *arguments: Any,
        left_truncate_len: int | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Returns token ids and mask, padded on the left."""
        ids, mask = super().tok_batch_encode(strings, *arguments, **options)
        # The padding is on the left, so the suffix is in the same columns of each row.
        kept = self._kept_columns(ids[0].tolist(), left_truncate_len)
        return ids[:, kept], mask[:, kept]

    def _kept_columns(self, ids: list[int], room: int | None) -> slice:
        """Returns the slice of a prompt's ids without the suffix, cut on the left to `room` ids.

        lm-eval would cut the prompt while it has the suffix, and so lose more of the prompt.
        """
        # No suffix ends a text that brings its own BOS: lm-eval then adds no special tokens.
        count = len(self._suffix)
        stop = len(ids) - (count if count and ids[-count:] == self._suffix else 0)
        return slice(max(0, stop - room) if room else 0, stop)


def suffix_ids(tokenizer: Any) -> list[int]:
    """Returns the ids that a transformers tokenizer adds after a text.

    Raises: InputError if special tokens change how the text itself is split.
    """
    full = tokenizer.encode(_PROBE)
    bare = tokenizer.encode(_PROBE, add_special_tokens=False)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return list(full[start + len(bare) :])
    raise InputError(
        f"tokenizer: special tokens change how {_PROBE!r} is split: {bare} without them, {full} "
        "with them; fix the post_processor of its tokenizer.json"
    )

"""Vocabulary-agnostic teacher-guided language modelling.

`import vocagno` loads NumPy and the compiled aligner, nothing else:

    student, teacher = (vocagno.TokenSpans(path).encode([text]) for path in (small, large))
    mapping = vocagno.align(student.spans, teacher.spans)  # rows of the teacher for each token
    teacher_loss = vocagno.reduce(teacher_nll, mapping, how="max")

The parts that need torch are imported from `vocagno.guidance` and `vocagno.teacher`, the commands
from `vocagno.cli`.
Source of the method: Shin et al., VocAgnoLM, ICML 2025, arXiv 2503.19123.
"""

from typing import TYPE_CHECKING, Any

from vocagno._vocagno import SpanError
from vocagno.alignment.mapping import (
    Groups,
    Overlap,
    Reason,
    align,
    chunk_boundaries,
    chunk_map,
    groups,
    overlap,
    reduce,
    starts,
    unmapped_reasons,
)
from vocagno.system import lazy_names
from vocagno.tokens.buckets import Agreement, BucketError, Buckets, buckets
from vocagno.tokens.token_spans import TextError, TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError
from vocagno.views.statistics import Link, alignment_rates, links, vocabulary_overlap
from vocagno.views.texts import AlignedText, align_text

if TYPE_CHECKING:
    from vocagno.integrations.credit import credit
    from vocagno.integrations.pretokenized import spans_of_same_texts

__version__: str
__all__ = [
    "Agreement",
    "AlignedText",
    "BucketError",
    "Buckets",
    "Groups",
    "Link",
    "Overlap",
    "Reason",
    "SpanError",
    "TextError",
    "TokenSpans",
    "TokenizedTexts",
    "TokenizerError",
    "align",
    "align_text",
    "alignment_rates",
    "buckets",
    "chunk_boundaries",
    "chunk_map",
    "credit",
    "groups",
    "links",
    "overlap",
    "reduce",
    "spans_of_same_texts",
    "starts",
    "unmapped_reasons",
    "vocabulary_overlap",
]


# These two import torch or transformers, so they are loaded when they are first used.
_lazy_name = lazy_names(
    __name__,
    {
        "vocagno.integrations.credit": "credit",
        "vocagno.integrations.pretokenized": "spans_of_same_texts",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vocagno")
    return _lazy_name(name)

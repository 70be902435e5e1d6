"""Vocabulary-agnostic teacher-guided language modelling.

`import vocagno` loads NumPy and the compiled aligner, nothing else:

    student, teacher = (vocagno.TokenSpans(path).encode([text]) for path in (small, large))
    mapping = vocagno.align(student.spans, teacher.spans)  # rows of the teacher for each token
    teacher_loss = vocagno.reduce(teacher_nll, mapping, how="max")

The torch part is in `vocagno.training`, the commands in `vocagno.cli`.
Source of the method: Shin et al., VocAgnoLM, ICML 2025, arXiv 2503.19123.
"""

from vocagno._vocagno import SpanError
from vocagno.aligned_text import AlignedText, align_text
from vocagno.alignment import Overlap, Reason, align, overlap, unmapped_reasons
from vocagno.chunks import chunk_boundaries, chunk_map
from vocagno.grouping import Groups, groups
from vocagno.metrics import Link, alignment_rates, links, vocabulary_overlap
from vocagno.pretokenized import spans_of_same_texts
from vocagno.reduction import reduce
from vocagno.token_spans import TextError, TokenizedTexts, TokenSpans
from vocagno.tokenizer_source import TokenizerError

__version__: str
__all__ = [
    "AlignedText",
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
    "chunk_boundaries",
    "chunk_map",
    "groups",
    "links",
    "overlap",
    "reduce",
    "spans_of_same_texts",
    "unmapped_reasons",
    "vocabulary_overlap",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("vocagno")
    raise AttributeError(f"module 'vocagno' has no attribute {name!r}")

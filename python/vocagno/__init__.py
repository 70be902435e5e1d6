"""Vocabulary-agnostic teacher-guided language modelling.

`import vocagno` loads NumPy and the compiled aligner, nothing else:

    student, teacher = (vocagno.TokenSpans(path).encode([text]) for path in (small, large))
    mapping = vocagno.align(student.spans, teacher.spans)  # rows of the teacher for each token
    teacher_loss = vocagno.reduce(teacher_nll, mapping, how="max")

The torch part has two doors: `vocagno.guidance` and `vocagno.teacher`. The commands are in
`vocagno.cli`.
Source of the method: Shin et al., VocAgnoLM, ICML 2025, arXiv 2503.19123.
"""

from vocagno._vocagno import SpanError
from vocagno.alignment.chunks import chunk_boundaries, chunk_map
from vocagno.alignment.groups import Groups, groups
from vocagno.alignment.mapping import Overlap, Reason, align, overlap, unmapped_reasons
from vocagno.alignment.reduction import reduce
from vocagno.tokens.credit import credit
from vocagno.tokens.pretokenized import spans_of_same_texts
from vocagno.tokens.token_spans import TextError, TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError
from vocagno.views.aligned_text import AlignedText, align_text
from vocagno.views.statistics import Link, alignment_rates, links, vocabulary_overlap

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
    "credit",
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

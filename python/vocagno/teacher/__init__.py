"""The teacher's losses: computed, stored and read.

    from vocagno.teacher import ScoreStore, Teacher, TextReader, score_corpus

torch is imported when a name that needs it is first used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vocagno.system import lazy_names

if TYPE_CHECKING:
    from vocagno.teacher.candidates import Candidates
    from vocagno.teacher.score_store import MatchedScores, ScoreStore
    from vocagno.teacher.scoring import Teacher, score_corpus
    from vocagno.teacher.windows import TextReader

__all__ = ["Candidates", "MatchedScores", "ScoreStore", "Teacher", "TextReader", "score_corpus"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "vocagno.teacher.candidates": "Candidates",
        "vocagno.teacher.score_store": "MatchedScores ScoreStore",
        "vocagno.teacher.scoring": "Teacher score_corpus",
        "vocagno.teacher.windows": "TextReader",
    },
)

"""The teacher's choice in one text: as data, as a page, in a terminal and in a notebook."""

import csv
import html
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from vocagno.config.guidance import PAPERS_RULE, GuidanceConfig
from vocagno.views.page import render_fragment, render_page
from vocagno.views.passage import Passage, Token
from vocagno.views.verdicts import COMPETING, whys

CSV_COLUMNS = (
    *("row", "token", "id", "start", "end", "student_loss", "teacher_first", "teacher_stop"),
    *("teacher_tokens", "teacher_losses", "teacher_loss", "excess", "neighbours_loss"),
    *("kept", "why", "lacks"),
)
"""Of `GuidedText.csv`, with a line for each student token. Teacher tokens and their losses are JSON
lists; a missing value is an empty cell. For `unit: group`, teacher_loss and excess are those of the
group. neighbours_loss, in nats a byte, is what `window_max_loss` limits."""


@dataclass(frozen=True)
class GuidedText:
    """The result of `guide_text`. A notebook shows it as a picture."""

    student: str
    """Source of the student."""
    teacher: str
    """Source of the teacher."""
    guidance: GuidanceConfig
    passage: Passage
    """Text, tokens of both sides with losses, weights and verdicts, mapping."""

    @property
    def counts(self) -> dict[str, int]:
        """Student tokens: predicted, kept, competing, and of each kind of verdict."""
        tokens = self.passage.student
        counted = Counter(token.why for token in tokens)
        return {
            "tokens": len(tokens),
            "predicted": len(tokens) - counted["not predicted"],
            "kept": sum(map(self.passage.is_kept, range(len(tokens)))),
            "competing": sum(counted[why] for why in COMPETING),
            **{why: counted[why] for why in whys(self.guidance)},
        }

    @property
    def threshold(self) -> float | None:
        """The excess loss, in nats, that decides. For a quota: the least of the kept tokens that
        competed and have a teacher loss. Else: the threshold that applied."""
        if not self.guidance.has_quota_alone:
            return self.passage.threshold
        excesses = (token.excess for token in self.passage.student if token.why == "top")
        return min((excess for excess in excesses if excess is not None), default=None)

    def summary(self) -> str:
        """The counts and the threshold."""
        counts, threshold = self.counts, self.threshold
        verdicts = ", ".join(f"{why} {counts[why]:,}" for why in whys(self.guidance) if counts[why])
        found = (
            f"{counts['kept']:,} of {counts['predicted']:,} predicted tokens are kept. "
            f"Verdicts: {verdicts}."
        )
        return found if threshold is None else f"{found} Threshold: {threshold:+.3f} nats."

    def as_dict(self) -> dict[str, Any]:
        """All data as JSON has it: spans in bytes, losses in nats, `teacher` a half-open range of
        the teacher's tokens."""
        passage = self.passage
        return {
            "text": passage.text,
            "student": self.student,
            "teacher": self.teacher,
            "guidance": self._options(),
            "counts": self.counts,
            "threshold": self.threshold,
            "tokens": [self._as_dict(row) for row in range(len(passage.student))],
            "teacher_tokens": [_facts(token, "loss") for token in passage.teacher],
        }

    def _options(self) -> dict[str, Any]:
        """The options of the choice: those of the quota, and all that are set."""
        options, defaults = asdict(self.guidance), asdict(PAPERS_RULE)
        shown = ["top_fraction", "aggregation", "unmapped"]
        if self.guidance.unit == "group":  # adds losses up
            shown.remove("aggregation")
        shown += [name for name in options if options[name] != defaults[name]]
        return {name: options[name] for name in dict.fromkeys(shown)}

    def _as_dict(self, row: int) -> dict[str, Any]:
        token = self.passage.student[row]
        first, stop = self.passage.mapping[row]
        return _facts(token, "student_loss") | {
            "teacher": [first, stop] if first >= 0 else None,
            "teacher_loss": token.teacher_loss,
            "excess": token.excess,
            "neighbours_loss": token.neighbours_loss,
            "kept": self.passage.is_kept(row),
            "why": token.why,
            "lacks": token.lacks,
        }

    def csv(self) -> str:
        """A line for each student token under `CSV_COLUMNS`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for row in range(len(self.passage.student)):
            cells = self._as_dict(row) | {"row": row, "kept": int(self.passage.is_kept(row))}
            first, stop = self.passage.mapping[row]
            if first >= 0:
                tokens = self.passage.teacher[first:stop]
                texts = json.dumps([token.text for token in tokens], ensure_ascii=False)
                cells |= {"teacher_first": first, "teacher_stop": stop, "teacher_tokens": texts}
                cells["teacher_losses"] = json.dumps([token.nll for token in tokens])
            writer.writerow([cells.get(name) for name in CSV_COLUMNS])
        return text.getvalue()

    def html(self) -> str:
        """A self-contained page."""
        rows = [
            _summary_row("student", self.student, self.passage.student),
            _summary_row("teacher", self.teacher, self.passage.teacher),
        ]
        options = self._options().items()
        rule = ", ".join(f"{name} {value}" for name, value in options if value is not None)
        return render_page(
            title="What the teacher chose",
            introduction=f"{self.summary()} Rule: {rule}.",
            summary_rows=rows,
            passages=[self.passage],
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.summary())}</p>{render_fragment(self.passage)}"

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """`rich.print(guided)` draws the table in the terminal."""
        from rich.text import Text

        from vocagno.views.terminal import guidance_signs, guidance_table

        yield guidance_table(self.passage, self.guidance, options.max_width)
        yield Text()
        yield Text(guidance_signs(self.guidance), "dim")
        yield Text(self.summary())

    def __repr__(self) -> str:
        return f"GuidedText({self.passage.text[:40]!r}: {self.summary()})"


def _summary_row(side: str, name: str, tokens: Sequence[Token]) -> dict[str, str]:
    losses = [token.nll for token in tokens if token.nll is not None]
    mean = f"{fmean(losses):.3f}" if losses else "none"
    return {"": side, "model": name, "tokens": f"{len(tokens):,}", "mean loss": f"{mean} nats"}


def _facts(token: Token, loss: str) -> dict[str, Any]:
    spans = {"start": token.start, "end": token.end}
    return {"token": token.text, "id": token.id, **spans, loss: token.nll}

"""The teacher's choice in one text: as data, as a page, in a terminal and in a notebook."""

import csv
import html
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from vocagno.config.guidance import PAPERS_RULE, GuidanceConfig
from vocagno.views.page import guidance_fragment, guidance_page
from vocagno.views.passage import Passage, Token
from vocagno.views.rules import is_quota, percent, signs_of_noise, threshold_that_applied
from vocagno.views.verdicts import Verdict, verdicts, whys

CSV_COLUMNS = (
    *("row", "token", "id", "start", "end", "student_loss", "teacher_first", "teacher_stop"),
    *("teacher_tokens", "teacher_losses", "teacher_loss", "excess", "neighbours_loss"),
    *("neighbours_excess", "weight", "kept", "why", "lacks"),
)
"""Of `GuidedText.csv`, with a line for each student token. Teacher tokens and their losses are JSON
lists; a missing value is an empty cell. For `unit: group`, teacher_loss and excess are those of the
group. neighbours_loss (nats a byte) and neighbours_excess are the inputs of `window`."""


@dataclass(frozen=True)
class GuidedText:
    """The result of `guide_text`. A notebook shows it as a picture."""

    student: str
    """Source of the student."""
    teacher: str
    """Source of the teacher."""
    guidance: GuidanceConfig
    passage: Passage
    """Text, tokens of both sides with losses and weights, mapping."""

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        """Why each student token is kept or dropped."""
        return verdicts(self.passage, self.guidance)

    @property
    def counts(self) -> dict[str, int]:
        """Student tokens: predicted, kept, competing, and of each kind of verdict."""
        found = self.verdicts
        counted = Counter(verdict.why for verdict in found)
        return {
            "tokens": len(found),
            "predicted": len(found) - counted["not predicted"],
            "kept": sum(verdict.kept for verdict in found),
            "competing": sum(verdict.competed for verdict in found),
            **{why: counted[why] for why in whys(self.guidance)},
        }

    @property
    def weight(self) -> float:
        """Sum of the weights of all tokens."""
        return self.passage.weight

    @property
    def threshold(self) -> float | None:
        """The excess loss, in nats, that decides. For a quota: the least of the kept tokens that
        competed and have a teacher loss. Else: the threshold that applied."""
        if not is_quota(self.guidance):
            return self.passage.threshold
        excesses = (verdict.token.excess for verdict in self.verdicts if verdict.why == "top")
        return min((excess for excess in excesses if excess is not None), default=None)

    def summary(self) -> str:
        """The counts in words."""
        counts = self.counts
        if self.guidance.weight == "hard":
            found = f"{counts['kept']:,} of {counts['predicted']:,} predicted tokens are kept. "
        else:
            found = (
                f"The weights of {counts['predicted']:,} predicted tokens add up to "
                f"{self.weight:.2f}; {counts['kept']:,} of them {_be(counts['kept'])} "
                f"{self.passage.least_kept:g} or more. "
            )
        found += f"{counts['competing']:,} compete"
        found += self._quota() if is_quota(self.guidance) else self._rule()
        for policy in ("included", "excluded"):
            if number := counts[policy]:
                found += f"; {number:,} without a teacher loss {_be(number)} {policy}"
        return found + "."

    def _quota(self) -> str:
        top, threshold = self.counts["top"], self.threshold
        least = "" if threshold is None else f", from {threshold:+.3f} nats on"
        share = f"the top {percent(self.guidance)}{least}"
        return f", of which {top:,} have the largest excess losses ({share})"

    def _rule(self) -> str:
        """The outcome for the competing tokens, without a full stop."""
        guidance, counts = self.guidance, self.counts
        group = " by the excess losses of their groups" if guidance.unit == "group" else ""
        if guidance.has_no_threshold:
            found = f", of which {counts['not noise']:,} are not noise"
        else:
            threshold = f"{threshold_that_applied(guidance, self.threshold)} nats"
            if guidance.weight == "hard":
                noise = "" if guidance.window is None else " and are not noise"
                found = f"{group}, of which {counts['reaches']:,} reach {threshold}{noise}"
            else:
                by = f"({guidance.weight}) by the distance from {threshold}"
                found = f"{group}, with weights {by}"
        if guidance.weight == "hard" and guidance.min_weight:
            found += f"; the others have the weight {guidance.min_weight:g}"
        if number := counts.get("noise", 0):
            found += f"; {number:,} {_be(number)} noise: {signs_of_noise(guidance, 'their')}"
        return found

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
            "weight": self.weight,
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
        token, verdict = self.passage.student[row], self.verdicts[row]
        first, stop = self.passage.mapping[row]
        return _facts(token, "student_loss") | {
            "teacher": [first, stop] if first >= 0 else None,
            "teacher_loss": token.teacher_loss,
            "excess": token.excess,
            "neighbours_loss": token.neighbours_loss,
            "neighbours_excess": token.neighbours_excess,
            "weight": token.weight,
            "kept": verdict.kept,
            "why": verdict.why,
            "lacks": verdict.lacks,
        }

    def csv(self) -> str:
        """A line for each student token under `CSV_COLUMNS`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for row in range(len(self.passage.student)):
            cells = self._as_dict(row) | {"row": row, "kept": int(self.verdicts[row].kept)}
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
        text = self.summary()
        return guidance_page(self.passage, self.guidance, introduction=text, summary_rows=rows)

    def _repr_html_(self) -> str:
        fragment = guidance_fragment(self.passage, self.guidance)
        return f"<p>{html.escape(self.summary())}</p>{fragment}"

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """`rich.print(guided)` draws the table in the terminal."""
        from rich.text import Text

        from vocagno.views.terminal import guidance_signs, guidance_table

        yield guidance_table(self.passage, self.guidance, options.max_width)
        yield Text()
        yield Text(guidance_signs(self.passage, self.guidance), "dim")
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


def _be(number: int) -> str:
    return "is" if number == 1 else "are"

"""Results for one text, as data and as pictures: `AlignedText` is its alignment under two
tokenizers, `GuidedText` the tokens that the student is trained on."""

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.arrays import sums_in
from vocagno.alignment.mapping import Reason, align, groups, unmapped_reasons
from vocagno.config.guidance import PAPERS_RULE, GuidanceConfig
from vocagno.errors import InputError
from vocagno.tokens.token_spans import TokenSpans
from vocagno.views.html import render_fragment, render_page
from vocagno.views.passage import COMPETING, Passage, StudentToken, Token, number, whys
from vocagno.views.statistics import Link, links

MOST_DRAWN_BYTES = 200_000
"""Longest text that is drawn."""


class PictureError(InputError):
    """The text is too long to be drawn."""


@dataclass(frozen=True, slots=True)
class Side:
    """The tokens of one tokenizer."""

    tokenizer: str
    tokens: list[str]
    """Vocabulary strings."""
    ids: NDArray[np.int32]
    spans: NDArray[np.int32]
    """(n, 2) half-open, in UTF-8 bytes."""
    proved: bool
    """True if the spans come from the ids only, False if from the tokenizer's offsets."""

    @property
    def rows(self) -> Iterator[tuple[str, int, int, int]]:
        """Vocabulary string, id, start and end of each token."""
        spans = self.spans.tolist()
        for token, index, (start, end) in zip(self.tokens, self.ids.tolist(), spans, strict=True):
            yield token, index, start, end

    def as_dict(self) -> dict[str, Any]:
        """Returns the tokens in types of JSON."""
        return {
            "tokenizer": self.tokenizer,
            "tokens": self.tokens,
            "ids": self.ids.tolist(),
            "spans": self.spans.tolist(),
            "spans_from": "ids" if self.proved else "offsets",
        }


@dataclass(frozen=True, slots=True)
class AlignedText:
    """The result of `align_text`. A notebook shows it as a picture."""

    text: str
    student: Side
    teacher: Side
    mapping: NDArray[np.int32]
    """(N, 2) half-open ranges of teacher rows, (-1, -1) for an unmapped token."""
    reasons: NDArray[np.uint8]
    """(N,) of `Reason`."""
    links: NDArray[np.uint8]
    """(N,) of `Link`."""

    @property
    def counts(self) -> dict[str, int]:
        """Student tokens of each kind of link, and of each reason for none."""
        links = np.bincount(self.links, minlength=len(Link)).tolist()
        reasons = np.bincount(self.reasons, minlength=len(Reason)).tolist()
        counts = {link.name.lower(): links[link] for link in Link if link != Link.UNMAPPED}
        return counts | {reason.name.lower(): reasons[reason] for reason in _REASONS}

    @property
    def coverage(self) -> float | None:
        """Mapped student tokens / those with text; None if no token has text."""
        with_text = int((self.student.spans[:, 0] < self.student.spans[:, 1]).sum())
        return int((self.links != Link.UNMAPPED).sum()) / with_text if with_text else None

    def as_dict(self) -> dict[str, Any]:
        """Returns all data in types of JSON: spans in bytes, `mapping` in rows of the teacher's
        tokens."""
        return {
            "text": self.text,
            "student": self.student.as_dict(),
            "teacher": self.teacher.as_dict(),
            "mapping": self.mapping.tolist(),
            "reasons": [Reason(reason).name.lower() for reason in self.reasons.tolist()],
            "counts": self.counts,
            "coverage": self.coverage,
        }

    def html(self) -> str:
        """Returns a self-contained page.

        Raises: PictureError for a text beyond `MOST_DRAWN_BYTES`.
        """
        return render_page(
            title="One text, two tokenizers",
            introduction=self.summary(),
            summary_rows=[
                {
                    "": name,
                    "tokenizer": side.tokenizer,
                    "tokens": f"{len(side.ids):,}",
                    "spans from": "ids, proved" if side.proved else "offsets, closed",
                }
                for name, side in (("student", self.student), ("teacher", self.teacher))
            ],
            passages=[self.passage("The text")],
        )

    def summary(self) -> str:
        """Returns the counts in words."""
        counts = self.counts
        words = [f"{counts[name]:,} {label}" for name, label in _LABELS.items() if counts[name]]
        names = [reason.name.lower() for reason in _REASONS]
        reasons = [f"{counts[name]:,} {name}" for name in names if counts[name]]
        unmapped = sum(counts[name] for name in names)
        words.append(f"{unmapped:,} unmapped" + (f" ({', '.join(reasons)})" if reasons else ""))
        coverage = "none" if self.coverage is None else f"{100 * self.coverage:.4g} %"
        return f"Student tokens: {', '.join(words)}. Coverage: {coverage}."

    def passage(self, title: str) -> Passage:
        """Returns the data of a picture.

        Raises: PictureError for a text beyond `MOST_DRAWN_BYTES`.
        """
        if (size := len(self.text.encode())) > MOST_DRAWN_BYTES:
            raise PictureError(
                f"the text has {size:,} bytes; at most {MOST_DRAWN_BYTES:,} are drawn. Draw a part "
                "of it, or take the mapping as data (--json, `as_dict()`)"
            )
        reasons = (Reason(reason).name.lower() for reason in self.reasons.tolist())
        return Passage(
            title=title,
            text=self.text,
            student=[
                StudentToken(text=token, id=index, start=start, end=end, reason=reason)
                for (token, index, start, end), reason in zip(
                    self.student.rows, reasons, strict=True
                )
            ],
            teacher=[
                Token(text=token, id=index, start=start, end=end)
                for token, index, start, end in self.teacher.rows
            ],
            mapping=[(first, stop) for first, stop in self.mapping.tolist()],
        )

    def _repr_html_(self) -> str:
        try:
            return render_fragment(self.passage(self.summary()))
        except PictureError as error:  # a notebook shows every result
            return f"<p>{html.escape(self.summary())} No picture: {html.escape(str(error))}.</p>"

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """`rich.print(aligned)` draws it in the terminal."""
        from rich.text import Text

        from vocagno.views.terminal import LEGEND, terminal_lines

        yield from terminal_lines(self.passage(""), options.max_width)
        yield Text(LEGEND, "dim")
        yield Text(self.summary())

    def __repr__(self) -> str:
        return f"AlignedText({self.text[:40]!r}: {self.summary()})"


_REASONS = (Reason.SPECIAL, Reason.TRUNCATED, Reason.HOLE)
_LABELS = {"one_to_one": "1:1", "one_to_many": "1:N", "many_to_one": "N:1"}


def align_text(
    student: Any, teacher: Any, text: str, *, special_tokens: bool = False
) -> AlignedText:
    """Aligns one text under two tokenizers, for a picture.

    Args:
        student, teacher: a `TokenSpans`, or an argument of one.
        special_tokens: add each tokenizer's own BOS and EOS.
    Raises: TypeError for a text that is not a string; the errors of `TokenSpans` and its `encode`.
    """
    if not isinstance(text, str):
        raise TypeError(f"text: expected one str, got {type(text).__name__}")
    left = _side(student, text, special_tokens=special_tokens)
    right = _side(teacher, text, special_tokens=special_tokens)
    mapping = align(left.spans, right.spans)
    reasons = unmapped_reasons(left.spans, right.spans, mapping)
    return AlignedText(text, left, right, mapping, reasons, links(mapping, right.spans))


def _side(source: Any, text: str, *, special_tokens: bool) -> Side:
    tokenizer = source if isinstance(source, TokenSpans) else TokenSpans(source)
    tokenized = tokenizer.encode([text])
    ids, spans = tokenized.ids, tokenized.spans
    if special_tokens:
        before, after = tokenizer.prefix_ids, tokenizer.suffix_ids
        ids = np.array([*before, *ids, *after], np.int32)
        spans = np.pad(spans, ((len(before), 0), (0, 0)))
        spans = np.pad(spans, ((0, len(after)), (0, 0)), constant_values=len(text.encode()))
    tokens = [tokenizer.token(index) or "" for index in ids.tolist()]
    return Side(tokenizer.name, tokens, ids, spans, bool(tokenized.proved[0]))


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
        verdicts = Counter(token.why for token in tokens)
        return {
            "tokens": len(tokens),
            "predicted": len(tokens) - verdicts["not predicted"],
            "kept": sum(map(self.passage.is_kept, range(len(tokens)))),
            "competing": sum(verdicts[verdict] for verdict in COMPETING),
            **{verdict: verdicts[verdict] for verdict in whys(self.guidance)},
        }

    @property
    def threshold(self) -> float | None:
        """The excess loss, in nats, that decides. For a quota: the least of the kept tokens that
        competed and have a teacher loss. Else: the threshold that applied."""
        if not self.guidance.keeps_quota_of_units:
            return self.passage.threshold
        excesses = (token.excess for token in self.passage.student if token.why == "top")
        return min((excess for excess in excesses if excess is not None), default=None)

    @property
    def nats_per_byte(self) -> tuple[float, float] | None:
        """The loss of student and teacher in nats a byte, over the groups in which each of their
        tokens has one: the same bytes, where tokens differ. None without such a group."""
        sides = [[t for t in side if t.start < t.end] for side in self.passage.sides]
        # An empty list has floats and one dimension, so type and shape are given.
        spans = [np.array([(t.start, t.end) for t in s], np.int64).reshape(-1, 2) for s in sides]
        ranges = groups(*spans)
        pairs = zip(sides, (ranges.student, ranges.teacher), strict=True)
        losses = [sums_in(np.array([t.nll for t in side], float), rows) for side, rows in pairs]
        is_scored = np.isfinite(losses).all(0)
        first, stop = ranges.student[is_scored].T
        size = (spans[0][stop - 1, 1] - spans[0][first, 0]).sum()
        student, teacher = (group_losses[is_scored].sum() for group_losses in losses)
        return (float(student / size), float(teacher / size)) if size else None

    def summary(self) -> str:
        """Returns the counts and the threshold in words."""
        counts, threshold = self.counts, self.threshold
        names = [verdict for verdict in whys(self.guidance) if counts[verdict]]
        verdicts = ", ".join(f"{name} {counts[name]:,}" for name in names)
        words = (
            f"{counts['kept']:,} of {counts['predicted']:,} predicted tokens are kept. "
            f"Verdicts: {verdicts}."
        )
        return words if threshold is None else f"{words} Threshold: {threshold:+.3f} nats."

    def as_dict(self) -> dict[str, Any]:
        """Returns all data in types of JSON: spans in bytes, losses in nats, `teacher` a half-open
        range of the teacher's tokens."""
        passage, per_byte = self.passage, self.nats_per_byte or (None, None)
        return {
            "text": passage.text,
            "student": self.student,
            "teacher": self.teacher,
            "guidance": self._options(),
            "counts": self.counts,
            "threshold": self.threshold,
            "nats_per_byte": dict(zip(("student", "teacher"), per_byte, strict=True)),
            "tokens": [self._as_dict(row) for row in range(len(passage.student))],
            "teacher_tokens": [_facts(token, "loss") for token in passage.teacher],
        }

    def _options(self) -> dict[str, Any]:
        """Returns the options that decide: those of the quota, and all that differ from the paper's
        rule."""
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

    def html(self) -> str:
        """Returns a self-contained page."""
        rows = []
        sides = ("student", self.student), ("teacher", self.teacher)
        per_byte = self.nats_per_byte or (None, None)
        columns = zip(sides, self.passage.sides, per_byte, strict=True)
        for (side, model), tokens, loss_per_byte in columns:
            losses = [token.nll for token in tokens if token.nll is not None]
            row = {"": side, "model": model, "tokens": f"{len(tokens):,}"}
            row["nats a token"] = number(fmean(losses) if losses else None)
            rows.append(row | {"nats a byte, of the same bytes": number(loss_per_byte)})
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


def _facts(token: Token, loss: str) -> dict[str, Any]:
    spans = {"start": token.start, "end": token.end}
    return {"token": token.text, "id": token.id, **spans, loss: token.nll}

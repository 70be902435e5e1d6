"""Writes a corpus without the lines, or documents, that are noise to a teacher, for any trainer.

The decision is `guidance.lines`, on stored scores, which are found by a hash of the text. Any
number of processes share the work, shard by shard of the corpus. Parts are written atomically and
noted; a killed process loses the one that it was writing. When all are noted, the parts of each
file are joined under its name, and the manifest is written last.
"""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.config.guidance import GuidanceConfig, low_limit_warning
from vocagno.data.corpus import Corpus, ShardTexts
from vocagno.data.rewriting import Rewritten, files_of, join_parts, output_name, write_part
from vocagno.data.store.shards import MAKING, StoreError
from vocagno.data.store.state import Claim, first_difference, read_claim
from vocagno.errors import InputError, require
from vocagno.guidance.lines import JudgedText, judge_lines, line_starts
from vocagno.system.addresses import Address
from vocagno.system.files import atomic_file, digest, write_json
from vocagno.system.progress import Progress
from vocagno.system.shared_work import exclusively, share
from vocagno.teacher.score_store import NOT_SCORED, DocumentScores, ScoresOfTexts, ScoreStore
from vocagno.views.noise import noise_page, report_of

MANIFEST = "filtered.json"
REPORT = "report.md"
PAGE = "report.html"
LOSS, SHARE, RANGES = "teacher_nats_per_byte", "omitted_share", "omitted_ranges"
"""The fields that each record gets, the last one with `keep: marks`."""
_TYPES = {LOSS: pa.float64(), SHARE: pa.float64(), RANGES: pa.list_(pa.list_(pa.int64()))}
MAX_SHARE = 0.5
"""Share of the bytes above which something is probably wrong: the limit, or the teacher."""
_EXAMPLES = 20
_SHOWN = 100
"""Number of characters that the report shows of an example."""


@dataclass(frozen=True, kw_only=True)
class FilterRule:
    """Options of what a filter omits, and of what it writes."""

    window_max_loss: float | None = None
    """Nats a byte; None stands for that of the default rule of training, 2."""
    unit: Literal["line", "document"] = "line"
    """The window about which there is one decision, and which goes as a whole."""
    keep: Literal["rest", "marks"] = "rest"
    """rest: what is not noise. marks: the whole text, with the ranges of noise in characters."""
    missing: Literal["error", "keep", "drop"] = "error"
    """The treatment of documents that the scores lack."""

    def __post_init__(self) -> None:
        # The configuration of training checks the number, and knows the default.
        guidance = GuidanceConfig(window_max_loss=self.window_max_loss)
        object.__setattr__(self, "window_max_loss", guidance.window_max_loss)

    @property
    def warning(self) -> str | None:
        """Warns of a limit that drops short lines or documents for being short; None for others."""
        assert self.window_max_loss is not None  # has a default
        return low_limit_warning(self.window_max_loss, self.unit)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The fields that a record gets, with their types in Parquet."""
        return _TYPES if self.keep == "marks" else {name: _TYPES[name] for name in (LOSS, SHARE)}


class NoiseFilter:
    """Finds what of texts is noise to the teacher whose scores a store has."""

    def __init__(self, store: ScoreStore, rule: FilterRule) -> None:
        self.store = store
        self.rule = rule
        if warning := store.warning_of_pieces():
            warnings.warn(warning, stacklevel=2)
        self._scores = ScoresOfTexts(store, check=False)

    def judge(self, texts: Sequence[str], prompt_bytes: Sequence[int] = ()) -> list[JudgedText]:
        """Judges whole documents.

        Args: prompt_bytes: the bytes of the prompt at the start of each; default: none.
        Raises: StoreError for damaged scores.
        """
        scores = self._scores.find(texts)
        firsts = prompt_bytes or [0] * len(texts)
        return [self._judge(*item) for item in zip(texts, scores, firsts, strict=True)]

    def _judge(self, text: str, scores: DocumentScores, first_byte: int) -> JudgedText:
        """Judges one document by its scores. Raises: StoreError if they do not fit its text."""
        data, spans = text.encode(), scores.spans
        if len(spans) and (spans.max() > len(data) or (np.diff(_edges(spans), axis=0) < 0).any()):
            raise StoreError(
                f"{self.store.folder}: tokens of the document {text[:40]!r} are out of order or "
                "outside its text; make the scores again in another folder"
            )
        assert self.rule.window_max_loss is not None
        starts = line_starts(data, first_byte)
        if self.rule.unit == "document":
            starts = starts[:1]
        lines = judge_lines(spans, scores.nll, starts, self.rule.window_max_loss)
        # A document that the teacher could not read is no noise for that, and an empty one has no
        # scores to lack.
        missing = scores.missing if scores is NOT_SCORED and text else ""
        judged = JudgedText(data, first_byte, starts, lines, missing)
        # White space is no document.
        is_rest_blank = lines.is_noise.any() and not judged.rest().strip()
        if is_rest_blank or (missing and self.rule.missing == "drop"):
            lines = lines._replace(is_noise=np.ones(len(starts), bool))
        return replace(judged, lines=lines)

    def rewrite(self, judged: JudgedText) -> Rewritten:
        """Makes the new content of a document, and its further fields."""
        omitted = judged.omitted_bytes
        fields: dict[str, Any] = {
            LOSS: judged.nats_per_byte,
            SHARE: round(omitted / max(1, judged.num_bytes), 6),
        }
        if self.rule.keep == "marks":
            text = judged.data[judged.first_byte :].decode()
            return Rewritten(text, fields | {RANGES: judged.character_ranges()})
        # A document with only a prompt has no line that could be noise.
        is_dropped = bool(judged.missing) and self.rule.missing == "drop"
        is_dropped |= 0 < omitted == judged.num_bytes
        return Rewritten(None if is_dropped else judged.rest(), fields)


def _edges(spans: NDArray[np.int32]) -> NDArray[np.int32]:
    """The spans with text, whose edges must ascend."""
    return spans[spans[:, 0] < spans[:, 1]]


class _FilteredFiles:
    """The files of a filtered corpus, made part by part in one folder."""

    def __init__(self, corpus: Corpus, noise: NoiseFilter, folder: Path) -> None:
        """Raises: InputError or StoreError if the folder is, or holds, something else."""
        self.corpus = corpus
        self.noise = noise
        self.folder = folder
        self.files = [output_name(source) for source in corpus.sources]
        self.parts: dict[str, int] = {f"part-{n:06d}": n for n in range(len(corpus.shards))}
        self._making = folder / MAKING
        _check_folder(folder, corpus, self.files)
        rule, store = asdict(noise.rule), noise.store
        del rule["missing"]  # the notes say where it matters
        self.made_from: dict[str, Any] = {
            "text": corpus.fingerprint,
            "corpus": digest(json.dumps([source.identity() for source in corpus.sources])),
            "scores": digest(*(entry.file_hash for entry in store.manifest.shards)),
            **rule,
        }
        there = [name for name in [*self.files, REPORT, PAGE] if (folder / name).exists()]
        if there and not self.is_finished() and read_claim(folder) is None:
            raise InputError(f"--out: {folder / there[0]} exists already; name an empty folder")
        with exclusively(MANIFEST, folder):
            if self.is_finished():
                return self._check_finished()
            made_from = {name: value for name, value in self.made_from.items() if name != "text"}
            count = len(self.parts)
            Claim("filtered documents", corpus.fingerprint, count, made_from).save(folder)

    def is_finished(self) -> bool:
        """True if the manifest is written, by this process or another."""
        return (self.folder / MANIFEST).is_file()

    def manifest(self) -> dict[str, Any]:
        """Reads the manifest of finished files."""
        fields: dict[str, Any] = json.loads((self.folder / MANIFEST).read_bytes())
        return fields

    def _check_finished(self) -> None:
        """Raises: StoreError if the files are of something else, or are not all there."""
        before = self.manifest()
        mode = before["missing"] or self.noise.rule.missing
        inputs = before["made_from"] | {"missing": mode}
        expected = self.made_from | {"missing": self.noise.rule.missing}
        if inputs != expected:
            raise StoreError(
                f"{self.folder}: holds documents that were filtered with another "
                f"{first_difference(inputs, expected)}; name another folder, or delete this one"
            )
        if gone := [name for name in self.files if not (self.folder / name).is_file()]:
            raise StoreError(
                f"{self.folder}: {', '.join(gone[:5])} is gone; delete the folder, and filter again"
            )

    def make(self, name: str) -> None:
        """Writes and notes a part. Raises: StoreError for documents without scores."""
        shard = self.corpus.shards[self.parts[name]]
        source, documents = self.corpus.sources[shard.source], self.corpus.read_shard(shard)
        judged = self.noise.judge(documents.texts, documents.prompt_bytes)
        counts = _count(judged)
        if counts["missing_documents"] and self.noise.rule.missing == "error":
            _raise_missing(counts, self.noise.store, documents, judged)
        rewritten = [self.noise.rewrite(text) for text in judged]
        counts["omitted_documents"] = sum(new.text is None for new in rewritten)
        types = self.noise.rule.types
        # A file that was joined before this part is made again, by another rule for documents
        # without scores, is out of date.
        (self.folder / self.files[shard.source]).unlink(missing_ok=True)
        write_part(self._part(name), source, shard, documents, rewritten, types)
        examples = _choose_examples(_examples(judged, documents.places))
        missing = self.noise.rule.missing if counts["missing_documents"] else None
        note = {"counts": counts, "missing": missing, "examples": examples}
        write_json(self._making / f"{name}.json", note)

    def is_noted(self, name: str) -> bool:
        """True if a part is there, and made as this rule would treat documents without scores."""
        modes = None, self.noise.rule.missing
        try:
            return self.is_finished() or self.note(name)["missing"] in modes
        except FileNotFoundError:
            return self.is_finished()  # another process may just have finished

    def note(self, name: str) -> dict[str, Any]:
        """Reads the note of a part."""
        fields: dict[str, Any] = json.loads((self._making / f"{name}.json").read_bytes())
        return fields

    def join(self, file: str) -> None:
        """Joins the parts of one file under its name."""
        source = self.files.index(file)
        shards = self.corpus.shards
        parts = [self._part(name) for name, n in self.parts.items() if shards[n].source == source]
        join_parts(self.folder / file, parts, self._making)

    def finish(self, fields: dict[str, Any]) -> None:
        """Writes report and manifest, unless another process has."""
        with exclusively(MANIFEST, self.folder):
            if not self.is_finished():
                for name, words in {REPORT: report_of, PAGE: noise_page}.items():
                    with atomic_file(self.folder / name, self._making) as file:
                        file.write(words(fields).encode())
                write_json(self.folder / MANIFEST, fields | {"made_from": self.made_from})
        shutil.rmtree(self._making, ignore_errors=True)  # another process may be removing it

    def _part(self, name: str) -> Path:
        return self._making / f"{name}.part"


def filter_corpus(
    corpus: Corpus,
    store: ScoreStore,
    folder: Path,
    rule: FilterRule,
    *,
    allow_most: bool = False,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Writes a corpus without what is noise to a teacher: each file under its name in a folder.

    Any number of processes may do so at the same time; each returns when all is done. Their number
    changes no byte.

    Args:
        store: scores that `vocagno score` made; documents are found by a hash of the text.
        allow_most: more than half of the bytes may be noise.
    Returns: the manifest: counts of all documents and by file, and examples of what is omitted.
    Raises: InputError or StoreError for a folder with something else; CorpusError for a corpus that
        changes meanwhile, or whose records have the fields already; StoreError for documents
        without scores; InputError if more than half is noise.
    """
    files = _FilteredFiles(corpus, NoiseFilter(store, rule), folder)
    if not files.is_finished():
        done = 0
        with Progress("filtering", corpus.text_bytes, unit="B", show=show_progress) as progress:

            def report(name: str) -> None:
                nonlocal done
                done += corpus.shards[files.parts[name]].text_bytes
                progress.at(done)

            names = list(files.parts)
            share(
                names, folder, done=files.is_noted, make=files.make, report=report, partial=MAKING
            )
        try:
            fields = _sum_notes(files)
        except FileNotFoundError:  # another process has finished, and removed the notes
            return files.manifest()
        _check_share(fields, folder, allow_most=allow_most)
        there = sorted(fields["files"])
        share(
            there,
            folder,
            done=lambda name: (folder / name).is_file(),
            make=files.join,
            partial=MAKING,
        )
        files.finish(fields)
    return files.manifest()


def _check_folder(folder: Path, corpus: Corpus, names: Sequence[str]) -> None:
    """Raises: InputError for a folder that cannot take the files."""
    if isinstance(folder, Address):
        raise InputError(
            f"--out: {folder}: a filtered corpus is written to a folder; copy it there"
        )
    local = [f.path for s in corpus.sources for f in files_of(s) if f.system is None]
    if folder.resolve() in {Path(path).resolve().parent for path in local}:
        raise InputError(f"--out: {folder} holds the corpus itself; name another folder")
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(
                f"{corpus.name}: {count} of its files would be written as {name}; rename them"
            )


def _raise_missing(
    counts: Counter[str], store: ScoreStore, documents: ShardTexts, judged: Sequence[JudgedText]
) -> None:
    """Raises: StoreError that counts the documents of a shard without scores, and names one."""
    place = documents.places[next(n for n, text in enumerate(judged) if text.missing)]
    raise StoreError(
        f"{store.folder}: has no scores of {counts['missing_documents']:,} of the "
        f"{counts['documents']:,} documents of a shard, the first of which is {place}: edited or "
        "added since the corpus was scored, or another corpus; run `vocagno score` on it, or add "
        "--missing keep or --missing drop"
    )


def _check_share(fields: dict[str, Any], folder: Path, *, allow_most: bool) -> None:
    """Raises: InputError if more than half of the bytes are noise, unless that is allowed."""
    counts = fields["counts"]
    part = counts["omitted_bytes"] / max(1, counts["bytes"])
    require(
        allow_most or part <= MAX_SHARE,
        f"{part:.1%} of the bytes of {fields['corpus']} are noise by this limit, "
        f"{fields['rule']['window_max_loss']:g} nats a byte: the teacher may be weak, or strange "
        "to the text; `vocagno limit` finds a limit. To write it all the same, add --yes, which "
        f"takes what is made in {folder}; or delete that folder",
    )


def _count(judged: Sequence[JudgedText]) -> Counter[str]:
    """Counts documents and bytes, by what becomes of them."""
    omitted = [text.omitted_bytes for text in judged]
    sizes = [text.num_bytes for text in judged]
    return Counter(
        documents=len(judged),
        omitted_documents=0,
        shortened_documents=sum(0 < out < n for out, n in zip(omitted, sizes, strict=True)),
        missing_documents=sum(bool(text.missing) for text in judged),
        bytes=sum(sizes),
        omitted_bytes=sum(omitted),
    )


def _sum_notes(files: _FilteredFiles) -> dict[str, Any]:
    """Adds up the notes of all parts to the fields of the manifest."""
    counts_by_file: dict[str, Counter[str]] = {}
    examples, modes = [], set()
    for name, index in files.parts.items():
        note = files.note(name)
        file = files.files[files.corpus.shards[index].source]
        # `update` keeps counts of zero, which `+` would drop.
        counts_by_file.setdefault(file, Counter()).update(note["counts"])
        examples += note["examples"]
        modes.add(note["missing"])
    total = Counter[str]()
    for counts in counts_by_file.values():
        total.update(counts)
    return {
        "corpus": Path(files.corpus.name).name,
        "rule": asdict(files.noise.rule),
        "counts": dict(total),
        "files": {name: dict(counts) for name, counts in counts_by_file.items()},
        "missing": next((mode for mode in modes if mode is not None), None),
        "examples": _choose_examples(examples),
    }


def _examples(judged: Sequence[JudgedText], places: Sequence[str]) -> list[dict[str, Any]]:
    """Describes every line, or document, that is noise."""
    examples = []
    for text, place in zip(judged, places, strict=True):
        noise = np.flatnonzero(text.lines.is_noise)
        for line, (start, stop) in zip(noise.tolist(), text.ranges(), strict=True):
            size = int(text.lines.num_bytes[line])
            loss = round(float(text.lines.nats[line]) / size, 4) if size else None
            words = text.data[start:stop].decode()
            if words.strip():  # an empty line that goes with another one shows nothing
                key, shown = digest(words), words.rstrip("\n")[:_SHOWN]
                example = {"key": key, "place": place, "nats_per_byte": loss, "text": shown}
                examples.append(example)
    return examples


def _choose_examples(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chooses the examples with the smallest hashes of their text: a sample of the texts, each of
    them once, that does not depend on which process met it."""
    by_key: dict[str, dict[str, Any]] = {}
    for example in examples:
        by_key.setdefault(example["key"], example)
    return [by_key[key] for key in sorted(by_key)[:_EXAMPLES]]

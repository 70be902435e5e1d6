"""Steps of datatrove pipelines that make stores, or filter by them; for `vocagno[datatrove]`.

A pipeline runs on one machine, a Slurm cluster or Ray, and reads any source of datatrove. Each task
writes shards of its own, so no locks are needed. A task that is started again keeps the shards that
it finished.
"""

import json
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import SHARD_BYTES, ShardTexts, text_hash, texts_hash
from vocagno.data.prepare import pack_shard, rows_made_from
from vocagno.data.rows import NUMBERED_BY_SHARD, ROWS
from vocagno.data.store.building import check_files, finish_store
from vocagno.data.store.format import (
    MANIFEST,
    MAX_REFUSED,
    REFUSED,
    Manifest,
    RefusalLimit,
    StoreKind,
    entry_of,
    say_omitted,
)
from vocagno.data.store.shards import MAKING, Shard, StoreError
from vocagno.data.store.state import Claim, Notes, origin_of
from vocagno.errors import ConfigError, require
from vocagno.integrations.filtering import FilterRule, NoiseFilter
from vocagno.models.loading import local_device
from vocagno.system.addresses import Address, path_of
from vocagno.system.files import write_json
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import SCORES, ScoreStore
from vocagno.teacher.scoring import Teacher, write_scored
from vocagno.tokens.student_tokenizer import student_tokenizer

if TYPE_CHECKING:

    class PipelineStep:
        """The methods of datatrove's class that are used here; datatrove has no types."""

        def update_doc_stats(self, document: Any) -> None: ...
        def stat_update(self, *labels: str, value: int, unit: str) -> None: ...
        def track_time(self, unit: str) -> AbstractContextManager[Any]: ...

else:
    from datatrove.pipeline.base import PipelineStep


class ShardMaker(PipelineStep, ABC):
    """Makes the shards of a store from the documents that pass, and passes them on.

    Follow it, in an executor that `depends` on this one, with a `StoreFinisher`.
    """

    kind: StoreKind

    def __init__(self, folder: str | Path, shard_bytes: int) -> None:
        super().__init__()
        require(shard_bytes >= 1, f"shard_bytes must be positive, got {shard_bytes}")
        self.folder: Path = _local(folder)
        self.shard_bytes: int = shard_bytes

    @abstractmethod
    def made_from(self) -> dict[str, Any]:
        """The inputs, apart from the text, that determine the shards."""

    @abstractmethod
    def make(self, path: Path, documents: ShardTexts, made_from: dict[str, Any]) -> None:
        """Writes one shard atomically."""

    def run(self, data: Iterator[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Makes the shards of task `rank`.

        Raises: StoreError if the folder has shards of other documents, or with other settings.
        """
        made_from, notes = self.made_from(), Notes(self.folder)
        # A task sees only its own documents, so the claim cannot name the text. What it can name
        # decides how the documents are divided: with another number of tasks, the shards would hold
        # others.
        text = f"{world_size} tasks, shards of {self.shard_bytes} bytes"
        Claim(self.kind.kind, text, None, made_from).save(self.folder)
        task, shards, size = f"task-{rank:05d}", 0, 0
        texts, places = list[str](), list[str]()
        for document in data:
            self.update_doc_stats(document)
            texts.append(document.text)
            places.append(f"document {document.id}")
            size += len(document.text.encode())
            yield document
            if size >= self.shard_bytes:
                self._make(_name(task, shards), texts, places, made_from, notes)
                shards, size, texts, places = shards + 1, 0, [], []
        if texts:
            self._make(_name(task, shards), texts, places, made_from, notes)
            shards += 1
        # Written last: the finisher takes a task with this note for done, without opening its
        # shards.
        write_json(self.folder / MAKING / f"{task}.json", {"tasks": world_size, "shards": shards})

    def _make(
        self,
        name: str,
        texts: list[str],
        places: list[str],
        made_from: dict[str, Any],
        notes: Notes,
    ) -> None:
        """Makes a shard, unless it is there."""
        path, hashes = self.folder / f"{name}.arrow", [text_hash(text) for text in texts]
        if path.is_file():
            description = Shard(path).description
            expected = texts_hash(iter(hashes)), made_from
            if (description.text_hash, description.made_from) != expected:
                raise StoreError(
                    f"{path}: was made from other documents, or with other settings; the input of "
                    "this task has changed: name another folder, or delete this one"
                )
            return
        began = time.monotonic()
        with self.track_time("shard"):
            self.make(path, ShardTexts(texts, hashes, [0] * len(texts), places), made_from)
        shard = Shard(path)
        entry = entry_of(name, shard)
        notes.add(entry, time.monotonic() - began, origin_of(shard.description))
        for unit, count in entry.counts.items():
            if unit != "documents":  # datatrove counts these itself
                self.stat_update(unit, value=count, unit="shard")


class StoreFinisher(PipelineStep):
    """Writes the manifest of a store when all tasks of a `ShardMaker` are done.

    It is for an executor with one task, which `depends` on theirs.
    """

    kind: StoreKind

    def __init__(self, folder: str | Path, *, max_refused: float = MAX_REFUSED) -> None:
        """Args: max_refused: the share of documents that may be omitted (`data.max_refused`)."""
        super().__init__()
        self.folder: Path = _local(folder)
        self.max_refused: float = max_refused

    def run(
        self, data: Iterator[Any] | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Any]:
        """Finishes the store, unless it is finished.

        Raises: StoreError if a task is not done, or had more or fewer documents when the store was
            finished; if too many documents are omitted; if shards do not belong together or are
            damaged (`finish_store`, `check_files`).
        """
        # In an executor with more tasks than one, the first one finishes and the others pass on.
        if rank == 0 and not (self.folder / MANIFEST).is_file():
            finish_store(self.folder, _names(self.folder), self.kind)
        if rank == 0:
            manifest = Manifest.load(self.folder, self.kind)
            # Also where the store was finished before: tasks that ran again may have had other
            # documents, which the manifest would hide.
            _check_same(self.folder, manifest)
            check_files(self.folder, manifest)
            for unit in sorted({"documents", "tokens", REFUSED, self.kind.unit}):
                self.stat_update(unit, value=manifest.count(unit), unit="store")
            documents, refused = manifest.count("documents"), manifest.count(REFUSED)
            RefusalLimit(self.folder, documents, self.max_refused).check(refused)
            say_omitted(self.folder, documents, refused)
        yield from data or ()


class RowPacker(ShardMaker):
    """Tokenizes the documents that pass for a student, packs them into rows, and passes them on.

    The rows of a shard are those that `vocagno prepare` makes of the same documents: a shard begins
    a new row. A document is its text; there are no prompts. Follow it, in an executor that
    `depends` on this one, with `FinishRows`; training takes the folder as `data.rows`.
    """

    name = "vocagno: rows"
    type = "TOKENIZER"
    kind = ROWS

    def __init__(
        self,
        folder: str | Path,
        tokenizer: str | Path,
        *,
        seq_len: int = 2048,
        eos: str | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Args:
            folder: of the store; all tasks must see it.
            tokenizer: the student's tokenizer.json(.gz), folder or hub name.
            seq_len: predicted tokens of a row.
            eos: token after every document; default: the tokenizer's own.
            shard_bytes: bytes of text of a shard, or a little more; a killed task loses one.
        Raises: ConfigError for a number that is not positive.
        """
        super().__init__(folder, shard_bytes)
        require(seq_len >= 1, f"seq_len must be positive, got {seq_len}")
        self.tokenizer: str = str(tokenizer)
        self.seq_len: int = seq_len
        self.eos: str | None = eos

    def made_from(self) -> dict[str, Any]:
        """The inputs of `vocagno prepare`, and the fact that each shard numbers its documents."""
        return rows_made_from(_loaded(self.tokenizer, self.eos), self.seq_len) | NUMBERED_BY_SHARD

    def make(self, path: Path, documents: ShardTexts, made_from: dict[str, Any]) -> None:
        pack_shard(path, documents, 0, _loaded(self.tokenizer, self.eos), self.seq_len, made_from)


class FinishRows(StoreFinisher):
    """The `StoreFinisher` of `RowPacker`."""

    name = "vocagno: finish"
    type = "TOKENIZER"
    kind = ROWS


def _local(folder: str | Path) -> Path:
    """The path of a folder on a file system. Raises: ConfigError for an address."""
    is_local = not isinstance(path_of(folder), Address)
    require(is_local, f"{folder}: expected a folder that all tasks see, got an address")
    return Path(folder)


def _names(folder: Path) -> list[str]:
    """The shards of all tasks, in order.

    Raises: StoreError if a task is not done.
    """
    done = _done(folder)
    if not done:
        raise StoreError(f"{folder}: no task that makes this store is done")
    # More than one number of tasks: notes of runs with different numbers lie in one folder.
    (tasks, *other_counts) = {note["tasks"] for note in done.values()}
    missing = [rank for rank in range(tasks) if f"task-{rank:05d}" not in done]
    if missing or other_counts:
        raise StoreError(
            f"{folder}: {len(missing):,} of {tasks:,} tasks are not done (numbers "
            f"{', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}); run them "
            "again"
        )
    names = [_name(task, n) for task, note in done.items() for n in range(note["shards"])]
    if not names:
        raise StoreError(f"{folder}: the tasks had no documents")
    return names


def _done(folder: Path) -> dict[str, dict[str, int]]:
    """The notes of tasks that are done, by name; in a finished store, of those done since."""
    return {
        path.stem: json.loads(path.read_bytes())
        for path in sorted((folder / MAKING).glob("task-*.json"))
    }


def _name(task: str, number: int) -> str:
    """The name of a task's shard."""
    return f"{task}/shard-{number:05d}"


def _check_same(folder: Path, manifest: Manifest) -> None:
    """Compares the shards of tasks that ran again with those of a finished store.

    Raises: StoreError for a task with more or fewer documents.
    """
    finished = Counter(entry.name.partition("/")[0] for entry in manifest.shards)
    for task, note in _done(folder).items():
        if finished[task] != note["shards"]:
            raise StoreError(
                f"{folder}: this finished store has {finished[task]:,} shards of {task}, which now "
                f"has {note['shards']:,}: its documents have changed; name another folder, or "
                "delete this one"
            )


_loaded = lru_cache(maxsize=1)(student_tokenizer)
"""Loads a tokenizer, once for all tasks of a process."""


class TeacherScorer(ShardMaker):
    """Scores the documents that pass, and passes them on.

    The scores of a document are those of `vocagno score` under the same options: it is read on its
    own. Follow it, in an executor that `depends` on this one, with `FinishScores`.
    """

    name = "vocagno: teacher"
    type = "SCORER"
    kind = SCORES

    def __init__(
        self,
        folder: str | Path,
        teacher: Mapping[str, Any],
        *,
        shard_bytes: int = SHARD_BYTES,
        cache: str | Path = ".cache/vocagno",
    ) -> None:
        """Args:
            folder: of the store; all tasks must see it.
            teacher: options of `TeacherConfig`, such as `{"model": NAME, "dtype": "bfloat16"}`.
            shard_bytes: bytes of text of a shard, or a little more; a killed task loses one.
            cache: folder of the hashes of weights.
        Raises: ConfigError for an unknown option, or options that do not name a teacher.
        """
        super().__init__(folder, shard_bytes)
        if unknown := set(teacher) - {field.name for field in fields(TeacherConfig)}:
            raise ConfigError(f"teacher: no such options: {', '.join(sorted(unknown))}")
        self.cache: Path = Path(cache)
        self.config: TeacherConfig = TeacherConfig(**teacher)
        # Tensor parallelism needs processes that run in step, and tasks run when the scheduler
        # likes.
        if (self.config.model or self.config.server) is None or self.config.tensor_parallel:
            raise ConfigError("teacher: needs a model, and no tensor_parallel")

    def made_from(self) -> dict[str, Any]:
        """The inputs of `vocagno score`. Raises: ConfigError if the teacher cannot read texts."""
        teacher = ConfiguredTeacher(self.config, self.cache, local_device())
        teacher.check()
        return teacher.made_from

    def make(self, path: Path, documents: ShardTexts, made_from: dict[str, Any]) -> None:
        scores = _loaded_teacher(self.config, self.cache, self.folder).score(documents.texts)
        write_scored(path, documents, scores, made_from)


class FinishScores(StoreFinisher):
    """The `StoreFinisher` of `TeacherScorer`."""

    name = "vocagno: finish"
    type = "SCORER"
    kind = SCORES


class NoiseRemover(PipelineStep):
    """Removes what is noise to a teacher from the documents that pass, like `vocagno filter`.

    The metadata of a document gets the fields that the command writes. A document that is all noise
    does not pass.
    """

    name = "vocagno: filter"
    type = "FILTER"

    def __init__(self, scores: str | Path, **rule: Any) -> None:
        """Args:
            scores: the store of the teacher's scores; all tasks must see it.
            rule: options of `FilterRule`: `window_max_loss`, `unit`, `keep` and `missing`.
        Raises: ConfigError for an option that is wrong.
        """
        super().__init__()
        self.folder: Path = _local(scores)
        self.rule: FilterRule = FilterRule(**rule)
        if self.rule.warning:
            warnings.warn(self.rule.warning, stacklevel=2)

    def run(self, data: Iterator[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Passes on what is no noise. Raises: StoreError for a document without scores."""
        noise = NoiseFilter(ScoreStore(self.folder), self.rule)
        for document in data:
            with self.track_time("document"):
                (judged,) = noise.judge([document.text])
                if judged.missing and self.rule.missing == "error":
                    raise StoreError(
                        f"{self.folder}: has no scores of document {document.id}: score it, or "
                        "give missing='keep' or 'drop'"
                    )
                rewritten = noise.rewrite(judged)
            self.stat_update("omitted_bytes", value=judged.omitted_bytes, unit="document")
            if rewritten.text is not None:
                document.text = rewritten.text
                document.metadata |= rewritten.fields
                self.update_doc_stats(document)
                yield document


@lru_cache(maxsize=1)
def _loaded_teacher(config: TeacherConfig, cache: Path, folder: Path) -> Teacher:
    """Loads the teacher, once for all tasks of a process."""
    return ConfiguredTeacher(config, cache, local_device()).load(folder)

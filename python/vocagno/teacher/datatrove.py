"""Scores documents in a datatrove pipeline: on one machine, a Slurm cluster or Ray, from any source
that datatrove reads. Needs `vocagno[datatrove]`.

Each task writes shards of its own, so no locks are needed. A task that is started again keeps the
shards that it finished.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.run import TeacherConfig
from vocagno.data.corpus import SHARD_BYTES, text_hash, texts_hash
from vocagno.data.store.claim import Claim
from vocagno.data.store.finishing import finish_store
from vocagno.data.store.manifest import MANIFEST, Manifest, entry_of
from vocagno.data.store.notes import Notes
from vocagno.data.store.shards import MAKING, Shard, StoreError
from vocagno.errors import ConfigError
from vocagno.models.loading import local_device
from vocagno.system.files import write_json
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.corpus_scores import Teacher
from vocagno.teacher.scores import KIND, UNIT, VERSION, ScoreShard, write_scores

if TYPE_CHECKING:

    class PipelineStep:
        """What is used of datatrove's class, which has no types of its own."""

        def update_doc_stats(self, document: Any) -> None: ...
        def stat_update(self, *labels: str, value: int, unit: str) -> None: ...
        def track_time(self, unit: str) -> AbstractContextManager[Any]: ...

else:
    from datatrove.pipeline.base import PipelineStep

_CACHE = Path(".cache/vocagno")


class TeacherScorer(PipelineStep):
    """Scores the documents that pass, and passes them on.

    The scores of a document are those of `vocagno score` under the same options: it is read on its
    own. Follow it, in an executor that `depends` on this one, with `FinishScores`.
    """

    name = "vocagno: teacher"
    type = "SCORER"

    def __init__(
        self,
        folder: str | Path,
        teacher: Mapping[str, Any],
        *,
        shard_bytes: int = SHARD_BYTES,
        cache: str | Path = _CACHE,
    ) -> None:
        """Args:
            folder: of the store; all tasks must see it.
            teacher: options of `TeacherConfig`, such as `{"model": NAME, "dtype": "bfloat16"}`.
            shard_bytes: bytes of text of a shard, or a little more; a killed task loses one.
            cache: folder of the hashes of weights.
        Raises: ConfigError for an unknown option, or options that do not name a teacher.
        """
        super().__init__()
        known = {field.name for field in fields(TeacherConfig)}
        if unknown := set(teacher) - known:
            raise ConfigError(f"teacher: no such options: {', '.join(sorted(unknown))}")
        if shard_bytes < 1:
            raise ConfigError(f"shard_bytes must be positive, got {shard_bytes}")
        self.folder: Path = Path(folder)
        self.cache: Path = Path(cache)
        self.config: TeacherConfig = TeacherConfig(**teacher)
        if (self.config.model or self.config.server) is None or self.config.tensor_parallel:
            raise ConfigError("teacher: needs a model, and no tensor_parallel")
        self.shard_bytes: int = shard_bytes

    def run(self, data: Iterator[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Scores the documents of task `rank`.

        Raises: StoreError if the folder holds scores of another teacher, or of other documents.
        """
        teacher = ConfiguredTeacher(self.config, self.cache, local_device())
        teacher.check()
        made_from, notes = teacher.made_from, Notes(self.folder)
        text = f"{world_size} tasks, shards of {self.shard_bytes} bytes"
        Claim(KIND, text, None, made_from).save(self.folder)
        shards, size, texts = 0, 0, list[str]()
        for document in data:
            self.update_doc_stats(document)
            texts.append(document.text)
            size += len(document.text.encode())
            yield document
            if size >= self.shard_bytes:
                self._write(f"task-{rank:05d}/shard-{shards:05d}", texts, made_from, notes)
                shards, size, texts = shards + 1, 0, []
        if texts:
            self._write(f"task-{rank:05d}/shard-{shards:05d}", texts, made_from, notes)
            shards += 1
        write_json(
            self.folder / MAKING / f"task-{rank:05d}.json", {"tasks": world_size, "shards": shards}
        )

    def _write(self, name: str, texts: list[str], made_from: dict[str, Any], notes: Notes) -> None:
        """Scores a shard, unless it is there."""
        path, hashes = self.folder / f"{name}.arrow", [text_hash(text) for text in texts]
        if path.is_file():
            found = Shard(path).description
            if (found.text_hash, found.made_from) != (texts_hash(iter(hashes)), made_from):
                raise StoreError(
                    f"{path}: has the scores of other documents, or of another teacher; the input "
                    "of this task has changed: name another folder, or delete this one"
                )
            return
        began = time.monotonic()
        with self.track_time("shard"):
            scores = _loaded(self.config, self.cache, self.folder).score(texts)
        write_scores(path, hashes, scores, made_from)
        notes.add(entry_of(name, Shard(path)), time.monotonic() - began)
        self.stat_update("tokens", value=sum(len(one.nll) for one in scores), unit="shard")
        unscored = sum(one.num_unscored for one in scores)
        self.stat_update("unscored_tokens", value=unscored, unit="shard")


class FinishScores(PipelineStep):
    """Writes the manifest of a store when all tasks of `TeacherScorer` are done. For an executor
    with one task, which `depends` on theirs."""

    name = "vocagno: finish"
    type = "SCORER"

    def __init__(self, folder: str | Path) -> None:
        """Args: folder: of the store."""
        super().__init__()
        self.folder: Path = Path(folder)

    def run(
        self, data: Iterator[Any] | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Any]:
        """Finishes the store, unless it is finished.

        Raises: StoreError if a task is not done; as `finish_store`.
        """
        if rank == 0 and not (self.folder / MANIFEST).is_file():
            finish_store(self.folder, _names(self.folder), ScoreShard, UNIT)
        if rank == 0:
            manifest = Manifest.load(self.folder, KIND, VERSION)
            self.stat_update("documents", value=manifest.count("documents"), unit="store")
            self.stat_update("tokens", value=manifest.count("tokens"), unit="store")
        yield from data or ()


def _names(folder: Path) -> list[str]:
    """The shards of all tasks, in order.

    Raises: StoreError if a task is not done.
    """
    done = {
        path.stem: json.loads(path.read_bytes())
        for path in sorted((folder / MAKING).glob("task-*.json"))
    }
    if not done:
        raise StoreError(f"{folder}: no task of TeacherScorer is done")
    (tasks, *others) = {fields["tasks"] for fields in done.values()}
    missing = [rank for rank in range(tasks) if f"task-{rank:05d}" not in done]
    if missing or others:
        raise StoreError(
            f"{folder}: {len(missing):,} of {tasks:,} tasks are not done (numbers "
            f"{', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}); run them "
            "again"
        )
    names = [
        f"{task}/shard-{number:05d}"
        for task, fields in done.items()
        for number in range(fields["shards"])
    ]
    if not names:
        raise StoreError(f"{folder}: the tasks had no documents")
    return names


@lru_cache(maxsize=1)
def _loaded(config: TeacherConfig, cache: Path, folder: Path) -> Teacher:
    """The teacher; a process that does several tasks loads it once."""
    return ConfiguredTeacher(config, cache, local_device()).load_for(folder)

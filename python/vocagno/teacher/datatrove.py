"""Scores documents in a datatrove pipeline. Needs `vocagno[datatrove]`."""

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import SHARD_BYTES, ShardTexts
from vocagno.data.datatrove import ShardMaker, StoreFinisher
from vocagno.errors import ConfigError
from vocagno.models.loading import local_device
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.corpus_scores import Teacher, write_scored
from vocagno.teacher.scores import SCORES

_CACHE = Path(".cache/vocagno")


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
        cache: str | Path = _CACHE,
    ) -> None:
        """Args:
            folder: of the store; all tasks must see it.
            teacher: options of `TeacherConfig`, such as `{"model": NAME, "dtype": "bfloat16"}`.
            shard_bytes: bytes of text of a shard, or a little more; a killed task loses one.
            cache: folder of the hashes of weights.
        Raises: ConfigError for an unknown option, or options that do not name a teacher.
        """
        super().__init__(folder, shard_bytes)
        known = {field.name for field in fields(TeacherConfig)}
        if unknown := set(teacher) - known:
            raise ConfigError(f"teacher: no such options: {', '.join(sorted(unknown))}")
        self.cache: Path = Path(cache)
        self.config: TeacherConfig = TeacherConfig(**teacher)
        if (self.config.model or self.config.server) is None or self.config.tensor_parallel:
            raise ConfigError("teacher: needs a model, and no tensor_parallel")

    def made_from(self) -> dict[str, Any]:
        """As of `vocagno score`. Raises: ConfigError if the teacher cannot read texts."""
        teacher = ConfiguredTeacher(self.config, self.cache, local_device())
        teacher.check()
        return teacher.made_from

    def make(self, path: Path, documents: ShardTexts, made_from: dict[str, Any]) -> None:
        """Scores one shard."""
        scores = _loaded(self.config, self.cache, self.folder).score(documents.texts)
        write_scored(path, documents, scores, made_from)


class FinishScores(StoreFinisher):
    """Writes the manifest of a store when all tasks of `TeacherScorer` are done. For an executor
    with one task, which `depends` on theirs."""

    name = "vocagno: finish"
    type = "SCORER"
    kind = SCORES


@lru_cache(maxsize=1)
def _loaded(config: TeacherConfig, cache: Path, folder: Path) -> Teacher:
    """The teacher; a process that does several tasks loads it once."""
    return ConfiguredTeacher(config, cache, local_device()).load_for(folder)

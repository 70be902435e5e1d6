"""Options of the text: corpora, rows, what is held out."""

from dataclasses import dataclass
from pathlib import Path

from vocagno.config.mixture import row_counts
from vocagno.config.option_types import check_types
from vocagno.errors import require, require_at_least


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text."""

    train: dict[str, float] | str
    """JSON Lines (plain, .gz, .zst) or Parquet with a `text`, or a `prompt` and a `completion`;
    text files; a folder of these; any of them at an address (s3://, hf://); or
    datasets:NAME[:CONFIG[:SPLIT]]. Several: a mapping of each to its weight, its part of the
    rows."""
    rows: Path | list[Path] | None = None
    """A finished store of rows of `train` to use, or several, one for each corpus; default: those
    in the cache, made where missing. With `teacher.scores`, too, `train` is read only for
    `train.sample_every`."""
    validation: dict[str, str] | str | None = None
    """The same as `train`, held out: its mean loss is logged. Several: a mapping of names to them.
    """
    seq_len: int = 2048
    """Predicted tokens of a row."""
    isolate: bool = False
    """Whether attention stops at document borders (default: it crosses them). Refused for models
    with layers that read across them anyway, and for sliding windows shorter than a row."""
    cache: Path = Path(".cache/vocagno")
    """Folder of prepared rows, teacher scores and (for a live teacher) texts, by the hashes of
    their sources."""
    max_refused: float = 0.001
    """Share of the documents of a corpus that may be omitted, because their tokens cannot be
    placed in the text; up to ten always may, but with 0 none. The store names them in
    `refused.jsonl`."""
    num_workers: int = 0
    """Processes that load and align for each training process."""

    def __post_init__(self) -> None:
        check_types("data", self)
        require_at_least(1, "data", self, "seq_len")
        require_at_least(0, "data", self, "num_workers")
        require(
            0 <= self.max_refused <= 1,
            f"data.max_refused must be in [0, 1], got {self.max_refused}",
        )
        row_counts(self.corpora)
        given, wanted = len(self.row_stores), len(self.corpora)
        require(
            given in (0, wanted), f"data.rows: {given} stores for {wanted} corpora (data.train)"
        )
        require(self.validation != {}, "data.validation: names no corpus")

    @property
    def corpora(self) -> dict[str, float]:
        """What is trained on, with its weights."""
        return {self.train: 1.0} if isinstance(self.train, str) else self.train

    @property
    def held_out(self) -> dict[str, str]:
        """What is held out, by name; one that has none is named as it is found."""
        found = self.validation or {}
        return {found: found} if isinstance(found, str) else found

    @property
    def row_stores(self) -> list[Path]:
        """`rows` as a list; empty for those in the cache."""
        return self.rows if isinstance(self.rows, list) else [self.rows] if self.rows else []

    @property
    def one_corpus(self) -> str:
        """`train`, where only one can be used. Raises: ConfigError if there are several."""
        return _only(list(self.corpora), "data.train")

    @property
    def one_held_out(self) -> str:
        """`validation`, where one is needed. Raises: ConfigError if there is none, or several."""
        return _only(list(self.held_out.values()), "data.validation")


def _only(found: list[str], option: str) -> str:
    require(len(found) == 1, f"{option}: needs one corpus here, got {len(found)}")
    return found[0]

"""Options of the model that is trained."""

from dataclasses import dataclass
from typing import Any

from vocagno.config.option_types import check_types
from vocagno.errors import require


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """The model that is trained."""

    model: str | None = None
    """Folder or hub name of a causal language model to continue from."""
    architecture: dict[str, Any] | None = None
    """Instead of `model`: a new one, as the fields of its transformers config (with model_type)."""
    tokenizer: str | None = None
    """tokenizer.json, .json.gz or folder; default: that of `model`."""
    eos: str | None = None
    """Token put after every document; default: the tokenizer's own."""

    def __post_init__(self) -> None:
        check_types("student", self)
        require(
            (self.model is None) != (self.architecture is None),
            "student: give either `student.model` (to train on) or `student.architecture` (new)",
        )
        require(
            self.tokenizer is not None or self.model is not None,
            "student.tokenizer: needed with `student.architecture`",
        )
        require(
            self.architecture is None or "model_type" in self.architecture,
            "student.architecture: needs a `model_type`, for example llama",
        )

    @property
    def tokenizer_source(self) -> str:
        """Where the tokenizer comes from."""
        return str(self.tokenizer or self.model)

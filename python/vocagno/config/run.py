"""The options of a run, as dataclasses that jsonargparse fills from files and the command line."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from vocagno.config.data import DataConfig
from vocagno.config.evaluation import EvaluationConfig
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.optimizer import OptimizerConfig
from vocagno.config.option_types import check_types
from vocagno.config.student import StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.config.train import TrainConfig
from vocagno.errors import require


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run."""

    student: StudentConfig
    data: DataConfig
    train: TrainConfig
    resume: Literal["auto", "never"] = "auto"
    """auto: resume from the last checkpoint in `output`; never: stop if there is one."""
    output: Path
    """Folder of the run: resolved configuration, metrics, checkpoints, final model."""
    push_to_hub: str | None = None
    """Repository of the Hugging Face hub to upload the final model to, with its card."""
    hub_private_repo: bool = True
    """Whether a repository that `push_to_hub` creates is private."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        check_types("", self)
        teacher, guidance = self.teacher, self.guidance
        require(
            not guidance.needs_teacher or bool(teacher.model or teacher.server or teacher.scores),
            "teacher.model: guidance needs a teacher (or its finished scores, `teacher.scores`)",
        )
        require(
            not guidance.needs_teacher or teacher.mode == "stored" or teacher.model is not None,
            "teacher.model: teacher.mode: live needs one",
        )
        require(
            teacher.mode == "live" or not guidance.needs_live_teacher,
            f"guidance.{'criterion' if guidance.selects else 'method'}: needs more of the teacher "
            "than its stored losses; use teacher.mode: live",
        )
        teacher.scores_of(len(self.data.corpora))
        at_random = "" if guidance.selection == "teacher" else " at random"
        require(
            (guidance.selects and guidance.needs_teacher) or self.train.sample_every is None,
            "train.sample_every: shows what the teacher chose, and with guidance.method: "
            f"{guidance.method}{at_random} it chooses nothing",
        )
        require(
            self.optimizer.warmup_steps <= self.train.steps,
            f"optimizer.warmup_steps {self.optimizer.warmup_steps} is more than train.steps "
            f"{self.train.steps}",
        )

    @property
    def draws_samples(self) -> bool:
        """Whether the run draws what the teacher chose of some documents: at its end, if the text
        is at hand, or as `train.sample_every` wants."""
        chooses = self.guidance.selects and self.guidance.needs_teacher
        reads_text = not (self.data.rows and self.teacher.scores)
        return chooses and (reads_text or self.train.sample_every is not None)

    def as_options(self) -> dict[str, Any]:
        """Every option by its full name (`train.steps`)."""
        return _flat(asdict(self))


_MAPPINGS = ("student.architecture", "data.train", "data.validation")
"""Options whose value may be a mapping."""


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and prefix + name not in _MAPPINGS:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat

"""Losses to weights, and weights to gradients: the method.

    from vocagno.guidance import GuidanceConfig, selective_cross_entropy

torch is imported with the first name that needs it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vocagno.system import lazy_names

if TYPE_CHECKING:
    from vocagno.alignment.segments import segment_reduce
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.guidance.batch import GuidanceTensors, GuidedBatch, check_coverage
    from vocagno.guidance.bucket_targets import BucketTargets
    from vocagno.guidance.line_rule import Units, known_weights
    from vocagno.guidance.selective import count_kept, selective_cross_entropy, token_weights
    from vocagno.guidance.text_batches import guided_batch
    from vocagno.integrations.collators import DataCollatorWithTeacherLoss, GuidedCollator
    from vocagno.integrations.columns import TeacherLossColumns, TeacherTexts, add_teacher_loss
    from vocagno.integrations.transformers_trainer import GuidedTrainer
    from vocagno.models.head import language_head

__all__ = [
    "BucketTargets",
    "DataCollatorWithTeacherLoss",
    "GuidanceConfig",
    "GuidanceTensors",
    "GuidedBatch",
    "GuidedCollator",
    "GuidedTrainer",
    "TeacherLossColumns",
    "TeacherTexts",
    "Units",
    "add_teacher_loss",
    "check_coverage",
    "count_kept",
    "guided_batch",
    "known_weights",
    "language_head",
    "segment_reduce",
    "selective_cross_entropy",
    "token_weights",
]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "vocagno.alignment.segments": "segment_reduce",
        "vocagno.config.guidance": "GuidanceConfig",
        "vocagno.guidance.batch": "GuidanceTensors GuidedBatch check_coverage",
        "vocagno.guidance.bucket_targets": "BucketTargets",
        "vocagno.guidance.line_rule": "Units known_weights",
        "vocagno.guidance.selective": "count_kept selective_cross_entropy token_weights",
        "vocagno.guidance.text_batches": "guided_batch",
        "vocagno.integrations.collators": "DataCollatorWithTeacherLoss GuidedCollator",
        "vocagno.integrations.columns": "TeacherLossColumns TeacherTexts add_teacher_loss",
        "vocagno.integrations.transformers_trainer": "GuidedTrainer",
        "vocagno.models.head": "language_head",
    },
)

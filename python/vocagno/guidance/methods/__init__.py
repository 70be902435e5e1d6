"""The methods of guidance, a class each.

A method answers what a run asks of it (`base.Method`): which teacher tokens a student token is
compared with, how many tokens are kept, its loss, and what it logs. A new one is a class, a name in
`METHODS`, and its options in `vocagno.config.guidance`.
"""

from typing import TYPE_CHECKING

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance.methods.base import Method, Naive
from vocagno.guidance.methods.distillation import KullbackLeibler, SortedDistributions
from vocagno.guidance.methods.matching import Distill, LikelihoodMatching
from vocagno.guidance.methods.selection import Chunk, Rho1, VocAgno

if TYPE_CHECKING:  # NumPy and torch suffice for the loss
    from vocagno.guidance.bucket_targets import BucketTargets

METHODS: dict[str, type[Method]] = {
    "vocagno": VocAgno,
    "rho1": Rho1,
    "chunk": Chunk,
    "alm": LikelihoodMatching,
    "distill": Distill,
    "kld": KullbackLeibler,
    "uld": SortedDistributions,
    "cpt": Naive,
}


def method_of(guidance: GuidanceConfig, targets: "BucketTargets | None" = None) -> Method:
    """The method that a configuration names; `distill` makes batches only with `targets`."""
    return METHODS[guidance.method](guidance, targets)


def method_of_other_loops(
    guidance: GuidanceConfig, targets: "BucketTargets | None" = None
) -> Method:
    """As `method_of`, for loops that have the teacher's losses and nothing else of it.
    Raises: ConfigError for a method that needs more."""
    method = method_of(guidance, targets)
    if method.needs_our_loop:
        raise ConfigError(
            f"guidance.method: {guidance.method}: needs more than stored losses, which only "
            "`train.py` gives; use vocagno, alm, distill, rho1 (criterion: excess), chunk "
            "(selection: teacher) or cpt"
        )
    return method

"""The methods of guidance, one class for each.

A method answers what a run asks of it (`base.Method`): which teacher tokens a student token is
compared with, how many tokens are kept, its loss, and what it logs. A new one is a class, a name in
`METHODS`, and its options in `vocagno.config.guidance`; a rule of a user's own is a class anywhere.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance.methods.base import Method, Naive
from vocagno.guidance.methods.distillation import KullbackLeibler, SortedDistributions
from vocagno.guidance.methods.matching import Distill, LikelihoodMatching, Matching
from vocagno.guidance.methods.selection import Chunk, Rho1, TokenSelection, VocAgno

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
    """The method that a configuration names; `distill` makes batches only with `targets`.
    Raises: ConfigError for a rule of one's own that cannot be imported, or is none."""
    method = METHODS.get(guidance.method) or _own_rule(guidance.method)
    return method(guidance, targets)


def _own_rule(name: str) -> type[TokenSelection]:
    """The class that `MODULE:CLASS` names.
    Raises: ConfigError if it cannot be imported, or is no rule."""
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())  # which Python adds for `python -m`, but not for an installed command
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        rule: Any = getattr(import_module(module), attribute, None)
    except (ImportError, TypeError, ValueError) as error:  # the last two for a path, or no name
        raise ConfigError(
            f"guidance.method: {name}: {error}; start in the folder of that module, or name its "
            "folder in PYTHONPATH"
        ) from error
    is_rule = isinstance(rule, type) and issubclass(rule, TokenSelection)
    if not is_rule or issubclass(rule, Matching):  # `alm` and `distill` are no rules
        raise ConfigError(
            f"guidance.method: {name}: expected a class of {module} that derives from "
            f"vocagno.guidance.methods.selection.TokenSelection, got {rule!r}"
        )
    chosen: type[TokenSelection] = rule
    return chosen


def method_of_other_loops(
    guidance: GuidanceConfig, targets: "BucketTargets | None" = None
) -> Method:
    """The method that a configuration names, for loops that have only the teacher's stored losses
    and candidates.
    Raises: ConfigError for a method that needs more."""
    method = method_of(guidance, targets)
    if method.needs_our_loop:
        raise ConfigError(
            f"guidance.method: {guidance.method}: needs more than stored losses, which only "
            "`train.py` gives; use vocagno, alm, distill, rho1 (criterion: excess), chunk "
            "(selection: teacher) or cpt"
        )
    return method

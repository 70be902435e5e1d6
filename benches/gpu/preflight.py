"""What is checked before the first part: device, packages, and that the wheel is current."""

import filecmp
import importlib.util
from pathlib import Path

from gpu.packages import unmet
from vocagno.errors import ConfigError

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "target" / "gpu-wheels"


def check(*, rehearse: bool) -> None:
    """Raises: ConfigError, with everything that is missing at once."""
    import torch

    if not rehearse and not torch.cuda.is_available():
        raise ConfigError("no CUDA device; REHEARSE=1 carries out all parts small, on the CPU")
    wheels = sorted(WHEELS.glob("*.whl"))
    if not wheels:
        raise ConfigError(f"{WHEELS.relative_to(ROOT)}: no wheels; run `make gpu-wheels` first")
    if lacking := unmet(wheels):
        raise ConfigError(
            "this environment lacks what the parts need: " + "; ".join(lacking) + ". Install it, "
            "or put a wheel of it beside the others in target/gpu-wheels"
        )
    if stale := _stale():
        raise ConfigError(
            f"the wheel of vocagno is not of this checkout ({stale}): make gpu-wheels"
        )


def _stale() -> str | None:
    """A module that is another one in the checkout than where it is imported from."""
    spec = importlib.util.find_spec("vocagno")
    assert spec is not None
    assert spec.origin is not None
    imported, ours = Path(spec.origin).parent, ROOT / "python" / "vocagno"
    for path in sorted(ours.rglob("*.py")):
        name = path.relative_to(ours)
        if not (imported / name).is_file() or not filecmp.cmp(path, imported / name, shallow=False):
            return str(name)
    return None

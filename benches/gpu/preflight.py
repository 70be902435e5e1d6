"""What is checked before the first part: device, packages, and that the wheel is current."""

from pathlib import Path

from gpu.packages import SOURCES, sources_digest, unmet
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
            "or put a wheel of it next to the others in target/gpu-wheels"
        )
    built_from = WHEELS / SOURCES
    if not built_from.is_file() or built_from.read_text() != sources_digest(ROOT):
        raise ConfigError(
            "the wheel of vocagno was built from other sources than this checkout's: run "
            "`make gpu-wheels` again"
        )

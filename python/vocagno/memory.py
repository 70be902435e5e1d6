"""The most memory that this process has held."""

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_megabytes() -> float | None:
    """Peak resident memory of this process in MiB; None where the system does not tell.

    On Linux from /proc: `getrusage` counts what the process held that this one was started from.
    """
    if _STATUS.exists():
        lines = _STATUS.read_text().splitlines()
        kibibytes = next((line for line in lines if line.startswith("VmHWM:")), None)
        return None if kibibytes is None else int(kibibytes.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

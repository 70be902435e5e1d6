"""The facts that stand next to a figure: on what it was measured, without a name of the machine."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    """Returns processor, cores that may be used, Python, versions of packages and the day."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    affinity = getattr(os, "sched_getaffinity", None)
    facts = {
        "date": date.today().isoformat(),
        "processor": names[0] if names else platform.processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "python": platform.python_version(),
    }
    return facts | {name: importlib.metadata.version(name) for name in packages}


def print_lines(results: dict[str, Any] | Iterable[dict[str, Any]]) -> None:
    """Prints one JSON object a line, each as soon as it is there: a run may be stopped."""
    for line in [results] if isinstance(results, dict) else results:
        print(json.dumps(line), flush=True)

"""What every part has in common: its options, and a line of results as soon as it is there."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu.gauge import where
from gpu.sizes import Sizes, sizes

Measure = Callable[[Sizes, Path], Iterator[dict[str, Any]]]


def main(measure: Measure) -> None:
    """Prints what `measure` yields, one JSON object a line, with the device and the versions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="to work in")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for line in measure(sizes(rehearse=options.rehearse), options.folder):
        print(json.dumps(line | where()), flush=True)

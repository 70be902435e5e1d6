"""Trains a student under a teacher: `accelerate launch train.py [--config FILE] [--OPTION VALUE]`.

Without `--config` this runs the quickstart's guided configuration, and makes what it needs first.
"""

import sys
from pathlib import Path

try:
    from vocagno.quickstart.assets import make_assets
    from vocagno.training.main import main
except ModuleNotFoundError as error:
    sys.exit(f"error: needs {error.name}: pip install '.[train]'")

if __name__ == "__main__":
    quickstart = Path(__file__).parent / "configs" / "quickstart-guided.yaml"
    sys.exit(main(default_config=quickstart, prepare=make_assets))

"""Trains a student under a teacher: `accelerate launch train.py [--config FILE] [--OPTION VALUE]`.

It is `vocagno train`. Without `--config` and `--data.train` it trains the guided student of the
quickstart, and makes what that needs.
"""

import sys

try:
    from vocagno.quickstart.students import CONFIGS, make_assets
    from vocagno.training.main import main
except ModuleNotFoundError as error:
    print(f"error: needs {error.name}: pip install '.[train]'", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(default_config=CONFIGS / "guided.yaml", prepare=make_assets))

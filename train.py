"""Trains a student under a teacher: `accelerate launch train.py [--config FILE] [--OPTION VALUE]`.

The script is `vocagno train` with a default: without `--config` and without a text (`--data.train`)
it trains the guided student of the quickstart, and first makes the corpus, tokenizers and teacher
for that.
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

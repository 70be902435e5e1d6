"""`python -m vocagno.training --config FILE` is `train.py` for an installed package."""

import sys

from vocagno.training.main import main

if __name__ == "__main__":
    sys.exit(main())

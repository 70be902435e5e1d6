"""Runs the command `vocagno` for `python -m vocagno`."""

import sys

from vocagno.cli.app import main

if __name__ == "__main__":
    sys.exit(main())

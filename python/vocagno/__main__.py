"""`python -m vocagno` is the command `vocagno`."""

import sys

from vocagno.cli import main

if __name__ == "__main__":
    sys.exit(main())

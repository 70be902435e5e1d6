"""`python -m vocagno.quickstart` is `vocagno quickstart`."""

import sys

from vocagno.quickstart.students import main

if __name__ == "__main__":
    sys.exit(main())

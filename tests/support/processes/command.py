"""The command `vocagno`, as a script that a launcher can start."""

import sys

from vocagno.cli.app import main

sys.exit(main())

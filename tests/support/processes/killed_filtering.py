"""The command `vocagno`, which kills itself (SIGKILL) when `vocagno filter` comes to a chosen
point.

    killed_filtering.py POINT TURN filter CORPUS ...

POINT: a function of `integrations.filtering` or `data.rewriting`, in whose TURN-th call the process
dies; `none` for no kill.
"""

import os
import signal
import sys

from vocagno.cli.app import main
from vocagno.data import rewriting
from vocagno.integrations import filtering


def arm(point, turn):
    """Makes this process die in the turn-th call of a function."""
    module = filtering if hasattr(filtering, point) else rewriting
    step, left = getattr(module, point), [turn]

    def dying(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments)

    setattr(module, point, dying)


if __name__ == "__main__":
    if sys.argv[1] != "none":
        arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))

"""The command `vocagno`, with small parts and batches of token files, which kills itself (SIGKILL)
at a chosen point.

    killed_baking.py POINT TURN bake TOKENS ...

POINT: `write`, `note` or `finish` for a kill in the middle of the TURN-th call, `none` for none.
"""

import os
import signal
import sys

from vocagno.cli.app import main
from vocagno.integrations.baking import parts, whole_file

whole_file.PART_TOKENS, whole_file.BATCH_TOKENS = 400, 150


def arm(point, turn):
    """Makes this process die in the turn-th call of a step: half of it is done."""
    left = [turn]

    def due():
        left[0] -= 1
        return left[0] == 0

    def write(self, stream, first, values):
        if point == "write" and due():
            original(self, stream, first, values[: len(values) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, stream, first, values)

    def dying(*arguments):
        if due():
            os.kill(os.getpid(), signal.SIGKILL)
        return steps[point][1](*arguments)

    original = parts.BakedParts.write
    parts.BakedParts.write = write
    steps = {
        "note": ("write_json", parts.write_json),
        "finish": ("flush_folder", parts.flush_folder),
    }
    if point in steps:
        setattr(parts, steps[point][0], dying)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))

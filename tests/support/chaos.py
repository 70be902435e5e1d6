"""How often a test repeats itself: `make chaos` sets CHAOS, and has all of it."""

import os


def repeats(whole, short):
    """`whole` under `make chaos`, else `short`."""
    return whole if os.environ.get("CHAOS") else short

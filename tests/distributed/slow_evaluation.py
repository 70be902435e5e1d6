"""Trains with benchmarks that take long: SECONDS more to answer the questions of the last process,
and as long again to grade on the first, while the others have nothing to do."""

import os
import sys
import time

from vocagno.training import main as main_module
from vocagno.training.evaluating import Evaluation

own, graded = Evaluation._own, Evaluation._graded
seconds = float(os.environ["SECONDS"])


def slow_own(self, model, rank, world):
    if rank == world - 1:
        time.sleep(seconds)
    return own(self, model, rank, world)


def slow_graded(self, *arguments):
    time.sleep(seconds)
    return graded(self, *arguments)


Evaluation._own, Evaluation._graded = slow_own, slow_graded
sys.exit(main_module.main())

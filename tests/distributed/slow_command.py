"""The command `vocagno`, with shards of SHARD_BYTES of text that take SECONDS each to score."""

import os
import sys
import time

import vocagno.corpus
from vocagno.cli import main
from vocagno.training import scoring

vocagno.corpus.SHARD_BYTES = int(os.environ["SHARD_BYTES"])
score = scoring.Teacher.score


def slow(self, *arguments):
    time.sleep(float(os.environ["SECONDS"]))
    return score(self, *arguments)


scoring.Teacher.score = slow
sys.exit(main())

"""The command `vocagno`, with shards of SHARD_BYTES of text that take SECONDS each to score."""

import os
import sys
import time

import vocagno.data.corpus
from vocagno.cli.app import main
from vocagno.teacher.scoring import Teacher

vocagno.data.corpus.SHARD_BYTES = int(os.environ["SHARD_BYTES"])
score = Teacher.score


def slow(self, *arguments):
    time.sleep(float(os.environ["SECONDS"]))
    return score(self, *arguments)


Teacher.score = slow
sys.exit(main())

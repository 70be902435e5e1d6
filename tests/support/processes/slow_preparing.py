"""The command `vocagno`, with shards of one document that take SECONDS each to prepare, in helpers,
too; these fail if FAIL_IN_HELPERS is set."""

import multiprocessing
import os
import sys
import time

import vocagno.data.corpus
from vocagno.cli.app import main
from vocagno.data import prepare as preparing

vocagno.data.corpus.SHARD_BYTES = 1
cut_rows = preparing.cut_rows


def slow(*arguments):
    time.sleep(float(os.environ["SECONDS"]))
    if os.environ.get("FAIL_IN_HELPERS") and multiprocessing.parent_process():
        raise OSError("as asked")
    return cut_rows(*arguments)


preparing.cut_rows = slow  # a helper imports this file, too

if __name__ == "__main__":
    sys.exit(main())

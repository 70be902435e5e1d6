"""Makes a store of texts at an address again and again, each time in a process of its own that is
killed (SIGKILL) at an upload. Prints the number of each shard made, and whether the process died.

    killed_publishing.py CORPUS ADDRESS I/N ATTEMPTS

ATTEMPTS, as JSON: `[when, n, cache]`, `when` being "before" or "after" the n-th upload, or "never";
`cache` is the folder of that machine. 1/1: the whole store.
"""

import json
import os
import signal
import sys

import s3fs  # noqa: F401 - before the forks

from vocagno.data.corpus import scan
from vocagno.data.prepare import TEXTS, write_texts
from vocagno.data.store.building import Part, make_store
from vocagno.system.addresses import Address

MADE_FROM = {"format": "texts 1"}


def arm(when, turn):
    put, count = Address.put, [0]

    def die(now):
        if (now, count[0]) == (when, turn):
            os.kill(os.getpid(), signal.SIGKILL)

    def putting(self, content, **options):
        count[0] += 1
        die("before")
        put(self, content, **options)
        die("after")

    Address.put = putting


def attempt(corpus, address, part):
    def make(shard, path, _):
        documents = corpus.read_shard(shard)
        write_texts(path, documents.texts, documents.hashes, MADE_FROM)
        print(shard.first_document, flush=True)

    make_store(corpus, address, TEXTS, MADE_FROM, make, show_progress=False, part=part)


if __name__ == "__main__":
    corpus, address, part, attempts = sys.argv[1:]
    part = None if part == "1/1" else Part(*map(int, part.split("/")))
    for when, turn, cache in json.loads(attempts):
        child = os.fork()
        if child == 0:
            os.environ["VOCAGNO_CACHE"] = cache
            arm(when, turn)
            attempt(scan(corpus, shard_bytes=1), address, part)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print({0: "false", signal.SIGKILL: "true"}[status], flush=True)

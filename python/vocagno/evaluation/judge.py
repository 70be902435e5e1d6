"""Compares answers in a process of its own: `python -m vocagno.evaluation.judge`.

Reads requests and writes replies, JSON objects one a line: that a request is begun, and what is
found, each with its number. A comparison that takes too much processor time ends its process, which
only the kernel can do while sympy computes a large power. So the work is done by a fork, which has
the libraries already; when it dies, that is said, and there is another.
"""

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vocagno.evaluation.benchmarks import BENCHMARKS
from vocagno.evaluation.matching import matches
from vocagno.evaluation.normalizing import normalized
from vocagno.evaluation.typed import expression


def main(seconds: float, mebibytes: int) -> int:
    """Answers requests until there are no more.

    Args:
        seconds: of processor time that a request may take, where the system can say so.
        mebibytes: of address space that the process may have in addition to what it begins with.
    """
    replies = _only_for_replies()
    _import_all()
    _bound_memory(mebibytes)
    _write(replies, ready=True)
    if not hasattr(os, "fork"):  # Windows: whoever asks starts this process again
        return _answer(replies, seconds)
    while fork := os.fork():
        _, status = os.waitpid(fork, 0)
        if os.WIFEXITED(status):
            return os.waitstatus_to_exitcode(status)
        _write(replies, died=signal.Signals(os.WTERMSIG(status)).name)
    return _answer(replies, seconds)


def _answer(replies: TextIO, seconds: float) -> int:
    for line in sys.stdin:
        request = json.loads(line)
        number = request.pop("number")
        _write(replies, number=number, begun=True)  # a fork may die with nothing to do, too
        _bound_time(seconds)
        try:
            found = _REPLIES[request.pop("ask")](**request)
        except Exception as error:  # sympy and its parsers raise errors of any kind
            _bound_time(0)
            _write(replies, number=number, failed=f"{type(error).__name__}: {error}"[:200])
        else:
            _bound_time(0)
            _write(replies, number=number, found=found)
    return 0


def _write(replies: TextIO, **words: object) -> None:
    replies.write(json.dumps(words) + "\n")
    replies.flush()


def _import_all() -> None:
    """Before the first request, whose time this is not."""
    import math_verify.parser
    from sympy.parsing.latex import parse_latex

    parse_latex(normalized("one"))
    # The library's own evaluates what it takes for arithmetic as Python.
    math_verify.parser.parse_expr = expression
    logging.disable(logging.WARNING)  # math-verify says that its limits are off: ours hold


def _only_for_replies() -> TextIO:
    """Standard output, which nothing that a library prints can reach from here on."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _bound_time(seconds: float) -> None:
    """The signal's default is to end the process, whatever it does; 0 bounds nothing."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _bound_memory(mebibytes: int) -> None:
    if sys.platform != "linux":  # others do not have the limit, or do not hold to it
        return
    import resource

    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + mebibytes * 2**20, hard))


def _extract(benchmark: str, completion: str) -> str:
    return BENCHMARKS[benchmark].answer(completion)


def _verify(completion: str, stated: str, words: list[str] | None) -> bool:
    """Whether the math-verify library finds the gold answer in the completion.

    It reads a letter only without brackets, and `3/10.` as a number with a fraction of its own.
    """
    import math_verify as library

    completion = _BRACKETED.sub(r"\1", completion.removesuffix("."))

    texts = library.StringExtractionConfig(strings=tuple(words or ()))
    numbers = (library.LatexExtractionConfig(), library.ExprExtractionConfig())
    chosen = (texts,) if words else numbers
    gold = f"The answer is {stated}" if words else f"${stated}$"
    # The library's own limits are signals, which do not reach into sympy's large powers.
    found = library.parse(completion, chosen, parsing_timeout=None)
    wanted = library.parse(gold, chosen, parsing_timeout=None)
    return bool(library.verify(wanted, found, timeout_seconds=None))


_BRACKETED = re.compile(r"\(([A-E])\)")
_REPLIES: dict[str, Callable[..., Any]] = {"extract": _extract, "match": matches, "verify": _verify}


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))

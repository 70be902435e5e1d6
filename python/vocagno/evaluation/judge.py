"""Compares answers in a separate process: `python -m vocagno.evaluation.judge`.

Reads requests and writes replies, one JSON object per line: that a request has begun, and its
result, each with the request's number. A comparison that takes too much CPU time ends its process;
only the kernel can do that while sympy computes a large power. So a fork does the work, with the
libraries already imported. When it dies, the parent reports that and forks again.
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

from vocagno.evaluation.answers import expression, matches, normalized
from vocagno.evaluation.benchmarks import BENCHMARKS


def main(seconds: float, mebibytes: int) -> int:
    """Answers requests until there are no more.

    Args:
        seconds: limit on a request's CPU time, where the system supports one.
        mebibytes: limit on address space, in addition to what the process begins with.
    """
    replies = _only_for_replies()
    _import_all()
    _bound_memory(mebibytes)
    _write(replies, ready=True)
    if not hasattr(os, "fork"):  # Windows: the caller starts this process again
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
        _write(replies, number=number, begun=True)  # a fork may also die while idle
        _bound_time(seconds)
        try:
            found = _REPLIES[request.pop("ask")](**request)
        except Exception as error:  # sympy and its parsers raise many types of errors
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
    """Imports everything before the first request, so that it does not count as its time."""
    import math_verify.parser
    from sympy.parsing.latex import parse_latex

    parse_latex(normalized("one"))
    # The library's own function evaluates apparent arithmetic as Python.
    math_verify.parser.parse_expr = expression
    logging.disable(logging.WARNING)  # math-verify warns that its limits are off: ours apply


def _only_for_replies() -> TextIO:
    """Standard output, reserved for replies: what a library prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _bound_time(seconds: float) -> None:
    """Limits CPU time; 0 removes the limit. The signal's default action ends the process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _bound_memory(mebibytes: int) -> None:
    if sys.platform != "linux":  # other systems do not have the limit, or do not enforce it
        return
    import resource

    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + mebibytes * 2**20, hard))


def _extract(benchmark: str, completion: str) -> str:
    return BENCHMARKS[benchmark].answer(completion)


def _verify(completion: str, stated: str, words: list[str] | None) -> bool:
    """Whether the math-verify library finds the gold answer in the completion.

    It reads a letter only without brackets, and misreads `3/10.` with its trailing point. So the
    completion loses its last point, and words such as `2:35 P.M.` lose theirs with it, unless one
    of them would then begin another.
    """
    import math_verify as library

    completion = _BRACKETED.sub(r"\1", completion.removesuffix("."))

    bare = [word.removesuffix(".") for word in words or ()]
    if not any(one != other and other.startswith(one) for one in bare for other in bare):
        words, stated = words and bare, stated.removesuffix(".") if words else stated
    texts = library.StringExtractionConfig(strings=tuple(words or ()))
    numbers = (library.LatexExtractionConfig(), library.ExprExtractionConfig())
    chosen = (texts,) if words else numbers
    gold = f"The answer is {stated}" if words else f"${stated}$"
    # The library's own limits are signals, which cannot interrupt sympy's large powers.
    found = library.parse(completion, chosen, parsing_timeout=None)
    wanted = library.parse(gold, chosen, parsing_timeout=None)
    return bool(library.verify(wanted, found, timeout_seconds=None))


_BRACKETED = re.compile(r"\(([A-E])\)")
_REPLIES: dict[str, Callable[..., Any]] = {"extract": _extract, "match": matches, "verify": _verify}


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))

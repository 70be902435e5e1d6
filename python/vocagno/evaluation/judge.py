"""Grades completions: `Judge` extracts and compares answers in a process of its own, which is
`python -m vocagno.evaluation.judge`.

A completion is untrusted data, so the process has limits on time and memory. It reads requests and
writes replies, one JSON object per line: that a request has begun, and its result, each with the
request's number. A comparison that takes too much CPU time ends its process; only the kernel can do
that while sympy computes a large power. So a fork does the work, with the libraries already
imported. When it dies, the parent reports that and forks again.
"""

import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, TextIO

from vocagno.errors import InputError
from vocagno.evaluation.answers import expression, matches, normalize
from vocagno.evaluation.benchmarks import BENCHMARKS, Benchmark, Item


def main(seconds: float, mebibytes: int) -> int:
    """Runs the comparing process: answers the requests on standard input until it ends.

    Args:
        seconds: limit on a request's CPU time, where the system supports one.
        mebibytes: limit on address space, in addition to what the process begins with.
    """
    replies = _reserve_stdout()
    _import_all()
    _limit_memory(mebibytes)
    _send(replies, ready=True)
    if not hasattr(os, "fork"):  # Windows: the caller starts this process again
        return _answer_requests(replies, seconds)
    while fork := os.fork():
        _, status = os.waitpid(fork, 0)
        if os.WIFEXITED(status):
            return os.waitstatus_to_exitcode(status)
        _send(replies, died=signal.Signals(os.WTERMSIG(status)).name)
    return _answer_requests(replies, seconds)


def _answer_requests(replies: TextIO, seconds: float) -> int:
    for line in sys.stdin:
        request = json.loads(line)
        number = request.pop("number")
        _send(replies, number=number, begun=True)  # a fork may also die while idle
        _limit_time(seconds)
        try:
            reply = {"result": _HANDLERS[request.pop("ask")](**request)}
        except Exception as error:  # sympy and its parsers raise many types of errors
            reply = {"failed": f"{type(error).__name__}: {error}"[:200]}
        _limit_time(0)
        _send(replies, number=number, **reply)
    return 0


def _send(replies: TextIO, **reply: object) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _import_all() -> None:
    """Imports everything before the first request, so that it does not count as its time."""
    import math_verify.parser
    from sympy.parsing.latex import parse_latex

    parse_latex(normalize("one"))
    # The library's own function evaluates apparent arithmetic as Python.
    math_verify.parser.parse_expr = expression
    logging.disable(logging.WARNING)  # math-verify warns that its limits are off: ours apply


def _reserve_stdout() -> TextIO:
    """Returns standard output for replies only. What a library prints goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _limit_time(seconds: float) -> None:
    """Limits CPU time; 0 removes the limit. The signal's default action ends the process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(mebibytes: int) -> None:
    if sys.platform != "linux":  # other systems do not have the limit, or do not enforce it
        return
    import resource

    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + mebibytes * 2**20, hard))


def _verify(completion: str, stated: str, words: list[str] | None) -> bool:
    """Returns True if the math-verify library finds the gold answer in the completion.

    Args:
        stated: the gold answer as the benchmark writes it.
        words: the possible answers, if they are words or letters.
    """
    import math_verify as library

    # The library's own limits are signals, which cannot interrupt sympy's large powers.
    def parse(text: str, *targets: Any) -> list[Any]:
        return list(library.parse(text, targets, parsing_timeout=None))

    completion = completion.removesuffix(".")  # the library misreads `3/10.`
    if words:
        gold, answer = _parse_words(parse, completion, stated, words)
    else:
        targets = library.LatexExtractionConfig(), library.ExprExtractionConfig()
        gold, answer = parse(f"${stated}$", *targets), parse(completion, *targets)
    return bool(library.verify(gold, answer, timeout_seconds=None))


def _parse_words(
    parse: Callable[..., list[Any]], completion: str, stated: str, words: list[str]
) -> tuple[list[Any], list[Any]]:
    """Parses the gold answer and the completion's with math-verify, where answers are letters or
    words. Returns both, in this order, each as the list of its readings."""
    import math_verify as library

    # Where the benchmark lists no options, the gold answer is the one word that can be found: only
    # what the completion states as its answer counts, not a mention before it.
    if len(words) == 1 and r"\boxed" not in completion:
        completion = _STATEMENT.split(completion)[-1]
    # The library reads a letter only without brackets. P(A) of a formula keeps its brackets.
    if set(words) <= set("ABCDE"):
        completion = _BRACKETED.sub(r"\1", completion)
    # The completion lost its last point, so `2:35 P.M.` must lose its own, unless a word would then
    # be the beginning of another.
    bare, bare_gold = [word.removesuffix(".") for word in words], stated.removesuffix(".")
    if any(word != longer and longer.startswith(word) for word in bare for longer in bare):
        bare, bare_gold = words, stated
    texts, latex = library.StringExtractionConfig(tuple(bare)), library.LatexExtractionConfig()

    def readings(text: str, *targets: Any) -> list[str]:
        """Returns the readings as text, in lower case, without those as formulas: as formulas, `on`
        equals `no`, and `4-6` equals `1-3`."""
        return [word.lower() for word in parse(text, *targets) if isinstance(word, str)]

    gold = readings(f"The answer is {bare_gold}", texts)
    gold += readings(f"${stated}$", latex) + readings(rf"$\text{{{stated}}}$", latex)
    if r"\boxed" in completion:
        return gold, readings(completion, texts, latex)
    # LaTeX comes second: in "the answer is B because $x=2$" it would win.
    return gold, readings(completion, texts) or readings(completion, latex)


_STATEMENT = re.compile(r"(?i)the answer is:?")
_BRACKETED = re.compile(r"\(([A-E])\)")
_HANDLERS: dict[str, Callable[..., Any]] = {
    "extract": lambda benchmark, completion: BENCHMARKS[benchmark].answer(completion),
    "match": matches,
    "verify": _verify,
}


SECONDS = 3.0
"""Limit on a comparison's CPU time, as in the paper's harness; beyond it, the answer is wrong."""
MEBIBYTES = 2048
"""Limit on the comparing process's memory, in addition to its memory at start."""
_START_SECONDS = 120.0
"""Limit on the wall time of the process's imports, in seconds."""
_REQUIRED_VERSIONS = {
    "math-verify": "",
    "sympy": "",
    "word2number": "",
    "antlr4-python3-runtime": "4.11",  # sympy reads LaTeX only with this version
}
_PATIENCE = 10
"""Limit on a comparison's wall time, as a multiple of `SECONDS`, for a busy machine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one completion."""

    answer: str | None
    """The completion's answer, normalised; None if it could not be extracted in time."""
    harness_match: bool
    """True if the completion is right by the rules of the paper's harness."""
    math_verify: bool
    """True if the completion is right by the math-verify library."""
    undecided: tuple[str, ...]
    """Names of the requests, among `extract`, `match` and `verify`, that failed or exceeded a
    limit. They count as wrong."""


class Judge(AbstractContextManager["Judge"]):
    """Grades completions in a process of its own. Leaving the context ends that process.

    Raises: InputError if a required library is missing.
    """

    def __init__(self, *, seconds: float = SECONDS, mebibytes: int = MEBIBYTES) -> None:
        _check_libraries()
        self._limits = seconds, mebibytes
        self._num_requests = 0
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __exit__(self, *_: object) -> None:
        self.close()

    def verdict(self, benchmark: Benchmark, item: Item, completion: str) -> Verdict:
        """Grades a completion by both metrics; an empty one is wrong."""
        completion = completion.strip()
        undecided: list[str] = []

        def ask(name: str, **request: object) -> Any:
            result = self._ask({"ask": name, **request})
            if result is None:
                undecided.append(name)
            return result

        answer = ask("extract", benchmark=benchmark.name, completion=completion)
        match = verified = False
        if answer is not None and completion:  # a normalised gold answer may be empty, too
            match = answer == item.gold
            if not match and not benchmark.choice:  # letters are not to be simplified
                match = ask("match", answer=answer, gold=item.gold) is True
        words = None if item.words is None else list(item.words)
        verified = ask("verify", completion=completion, stated=item.stated, words=words) is True
        return Verdict(answer, match, verified, tuple(undecided))

    def _ask(self, request: dict[str, object]) -> Any:
        """Returns the process's result, or None if it fails, ends or takes too long."""
        is_begun = self._begin(request) or self._begin(request)
        reply = self._reply(self._limits[0] * _PATIENCE) if is_begun else None
        if reply is None:
            self.close()
            return None
        return reply.get("result")

    def _begin(self, request: dict[str, object]) -> bool:
        """Sends a request. Returns True if the process has begun it. If not, ends the process, so
        that a new one may be tried: one that is killed while it waits can lose a request, or half
        of one."""
        requests = self._requests()
        self._num_requests += 1
        try:
            requests.write(json.dumps({"number": self._num_requests, **request}) + "\n")
            requests.flush()
        except BrokenPipeError:
            reply = None
        else:
            reply = self._reply(self._limits[0] * _PATIENCE)
        if reply == {"number": self._num_requests, "begun": True}:
            return True
        self.close()
        return False

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        """Returns the process's next line, or None if it ends or writes nothing for `seconds`."""
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def _requests(self) -> IO[str]:
        """Returns the standard input of the process, and starts one if there is none. Raises:
        RuntimeError if it does not start."""
        if self._process is None:
            command = [sys.executable, "-m", "vocagno.evaluation.judge", *map(str, self._limits)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
            self._process, self._replies = process, queue.SimpleQueue()
            arguments = process.stdout, self._replies
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
            if self._reply(_START_SECONDS) is None:
                self.close()
                raise RuntimeError(f"the comparing process does not start: {' '.join(command)}")
        assert self._process.stdin is not None
        return self._process.stdin

    def close(self) -> None:
        """Ends the process, if there is one. The next verdict starts a new one."""
        if self._process is not None:
            if hasattr(os, "killpg"):  # including its forks
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
            self._process = None


def _check_libraries() -> None:
    """Checks the required libraries: without them, every comparison would count as wrong."""
    for package, release in _REQUIRED_VERSIONS.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = ""
        if not installed or not installed.startswith(release):
            raise InputError(
                f"grading needs {package} {release}, found {installed or 'none'}: "
                "pip install '.[eval]' in the checkout"
            )


def _forward(lines: Iterable[str], replies: "queue.SimpleQueue[str | None]") -> None:
    for line in lines:
        replies.put(line)
    replies.put(None)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))

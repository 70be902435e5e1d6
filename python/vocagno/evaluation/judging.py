"""Verdicts on completions. A completion is untrusted data: another process compares it, with limits
on time and memory, so that it cannot hang or end this process."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import Benchmark, Item

SECONDS = 3.0
"""Limit on a comparison's CPU time, as in the paper's harness; beyond it, the answer is wrong."""
MEBIBYTES = 2048
"""Limit on the comparing process's memory, in addition to its memory at start."""
_STARTING = 120.0
"""Limit on the wall time of its imports, in seconds."""
_NEEDED = {
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
    """Whether it is right by the rules of the paper's harness."""
    math_verify: bool
    """Whether it is right by the math-verify library."""
    undecided: tuple[str, ...]
    """Those of `extract`, `match` and `verify` that failed or exceeded a limit; they count as
    wrong."""


class Judge:
    """Gives verdicts. Leaving the context ends the comparing process.

    Raises: InputError if a required library is missing.
    """

    def __init__(self, *, seconds: float = SECONDS, mebibytes: int = MEBIBYTES) -> None:
        _check_libraries()
        self._limits = seconds, mebibytes
        self._asked = 0
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verdict(self, benchmark: Benchmark, item: Item, completion: str) -> Verdict:
        """The verdict on a completion; an empty one is wrong."""
        completion = completion.strip()
        undecided: list[str] = []

        def ask(what: str, **request: object) -> Any:
            found = self._ask({"ask": what, **request})
            if found is None:
                undecided.append(what)
            return found

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
        """The process's result, or None if it fails, ends or takes too long."""
        is_begun = self._begin(request) or self._begin(request)
        reply = self._reply(self._limits[0] * _PATIENCE) if is_begun else None
        if reply is None:
            self.close()
            return None
        return reply.get("found")

    def _begin(self, request: dict[str, object]) -> bool:
        """Whether the process has begun the request; if not, it is ended and a new process may be
        tried. A process that is killed while waiting can lose a request, or half of one."""
        requests = self._requests()
        self._asked += 1
        try:
            requests.write(json.dumps({"number": self._asked, **request}) + "\n")
            requests.flush()
        except BrokenPipeError:
            reply = None
        else:
            reply = self._reply(self._limits[0] * _PATIENCE)
        if reply == {"number": self._asked, "begun": True}:
            return True
        self.close()
        return False

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        """The process's next line, or None if it ends or writes nothing for `seconds`."""
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def _requests(self) -> IO[str]:
        """The process's standard input; starts the process if there is none.

        Raises: RuntimeError if it does not start.
        """
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
            if self._reply(_STARTING) is None:
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
    for package, release in _NEEDED.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = ""
        if not found or not found.startswith(release):
            raise InputError(
                f"grading needs {package} {release}, found {found or 'none'}: "
                "pip install 'vocagno[eval]'"
            )


def _forward(lines: Iterable[str], replies: "queue.SimpleQueue[str | None]") -> None:
    """Forwards lines as they arrive, then None."""
    for line in lines:
        replies.put(line)
    replies.put(None)

"""Verdicts on completions. What a completion says is data: it is compared in another process, with
limits on time and memory, and cannot hang or end this one."""

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
"""Processor time of a comparison, as in the paper's harness; what takes longer is wrong."""
MEBIBYTES = 2048
"""Memory of the comparing process beyond what it starts with."""
_STARTING = 120.0
"""Seconds by the clock for its imports."""
_NEEDED = {
    "math-verify": "",
    "sympy": "",
    "word2number": "",
    "antlr4-python3-runtime": "4.11",  # sympy reads LaTeX with no other
}
_PATIENCE = 10
"""Times `SECONDS` that a comparison may last by the clock, on a machine that does other things."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is found of one completion."""

    answer: str | None
    """What the completion answers, normalised; None if that could not be found in time."""
    harness_match: bool
    """By the rules of the paper's harness."""
    math_verify: bool
    """By the library of that name."""
    undecided: tuple[str, ...]
    """Those of `extract`, `match` and `verify` that failed, or came to no end within the limits:
    wrong."""


class Judge:
    """Gives verdicts; a context that ends its process.

    Raises: InputError if a library that it needs is not there.
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
        """The verdict on a completion, as the model gave it; one that says nothing is wrong."""
        completion = completion.strip()
        undecided: list[str] = []

        def ask(what: str, **request: object) -> Any:
            found = self._ask({"ask": what, **request})
            if found is None:
                undecided.append(what)
            return found

        answer = ask("extract", benchmark=benchmark.name, completion=completion)
        match = verified = False
        if answer is not None and completion:  # of a gold answer, too, nothing may be left
            match = answer == item.gold
            if not match and not benchmark.choice:  # letters are not to be simplified
                match = ask("match", answer=answer, gold=item.gold) is True
        words = None if item.words is None else list(item.words)
        verified = ask("verify", completion=completion, stated=item.stated, words=words) is True
        return Verdict(answer, match, verified, tuple(undecided))

    def _ask(self, request: dict[str, object]) -> Any:
        """What is found, or None if the process fails, ends or takes too long over it."""
        is_begun = self._begin(request) or self._begin(request)
        reply = self._reply(self._limits[0] * _PATIENCE) if is_begun else None
        if reply is None:
            self.close()
            return None
        return reply.get("found")

    def _begin(self, request: dict[str, object]) -> bool:
        """Whether the process has taken the request up; else it is ended, and a new one may be
        asked: one that is killed while it waits can take a request, or half of one, with it."""
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
        """The next line of the process, or None if it ends or says nothing for so long."""
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def _requests(self) -> IO[str]:
        """What the process reads; starts it if there is none.

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
        """Ends the process, if there is one; another verdict starts another."""
        if self._process is not None:
            if hasattr(os, "killpg"):  # what it forked, too
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
            self._process = None


def _check_libraries() -> None:
    """Without them, every comparison would fail, and look like a wrong answer."""
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
    """Hands lines on as they come, then None."""
    for line in lines:
        replies.put(line)
    replies.put(None)

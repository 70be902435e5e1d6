"""A Python that starts at once, for tests that start many processes.

`executable()` takes the arguments of Python: FILE, `-m MODULE` or `-c CODE`. A server that has
imported what scoring and training import forks itself for each start. The copy gets the arguments,
folder, environment, streams and limit on the size of files. It dies with the process that asked.
Unlike new processes, the copies of a server share the seed of Python's hashes. Tests of imports use
`sys.executable`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

MODULES = (
    *("attr", "docstring_parser", "pandas", "pyarrow.compute", "pyarrow.pandas_compat"),
    *("jsonargparse._parameter_resolvers", "jsonargparse._stubs_resolver"),
    *("torch._dynamo", "torch.distributed.run", "torch.utils.serialization.config"),
    *("accelerate.utils.other", "transformers.core_model_loading"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
    *("vocagno.cli.app", "vocagno.training.inputs", "vocagno.training.loop"),
    "vocagno.training.main",
)

# Asks the server, passes signals on, and ends as the copy does. Other options start a new Python.
CLIENT = """#!{python} -SE
import os, signal, socket, sys

arguments = sys.argv[1:]
plain = [a for a in arguments if a != "-u"]
if not plain or plain[0].startswith("-") and plain[0] not in ("-m", "-c"):
    os.execv({python!r}, [{python!r}, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
early, child = [], []


def passes_on(number, _):
    (os.kill(child[0], number) if child else early.append(number))


for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, passes_on)
import json, resource

limits = resource.getrlimit(resource.RLIMIT_FSIZE)
asked = json.dumps([arguments, os.getcwd(), dict(os.environ), limits]).encode()
socket.send_fds(server, [len(asked).to_bytes(8, "little")], [0, 1, 2])
server.sendall(asked)
answers = server.makefile()
child.append(int(answers.readline()))
for number in early:
    os.kill(child[0], number)
status = int(answers.readline() or 1)
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def executable() -> str:
    """The path of the program; its server runs until this process ends."""
    return _started()[0] if hasattr(os, "pidfd_open") else sys.executable


@cache
def _started() -> tuple[str, subprocess.Popen[bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program, path = folder / "python", str(folder / "socket")
    program.write_text(CLIENT.format(python=sys.executable, path=path))
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, path, str(program)],
        stdin=subprocess.PIPE,  # its end tells the server that this process has ended
        stdout=subprocess.PIPE,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    if server.stdout is None or server.stdout.readline() != b"ready\n":
        raise AssertionError("the server of warm_python.py did not start")
    return str(program), server


class Asked(NamedTuple):
    """What a client asks for, apart from its streams."""

    arguments: list[str]
    folder: str
    environ: dict[str, str]
    file_size: tuple[int, int]


class Server:
    """Waits for clients, and for the copies that it makes for them."""

    def __init__(self, path: str) -> None:
        self.chosen = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.pids: dict[socket.socket, int] = {}
        """Of the copies whose clients wait."""
        self.copies: dict[int, tuple[int, socket.socket]] = {}
        """By the descriptor that tells that a copy has ended."""
        for source in (self.listener, sys.stdin):
            self.chosen.register(source, selectors.EVENT_READ)

    def serve(self) -> Asked:
        """Returns in the copies only."""
        print("ready", flush=True)
        while True:
            for key, _ in self.chosen.select():
                source = key.fileobj
                if source is self.listener:
                    if asked := self.copied():
                        return asked
                elif isinstance(source, int):
                    self.ended(source)
                elif isinstance(source, socket.socket):
                    if source in self.pids:  # else its copy has just ended
                        self.lost(source)
                else:  # the process that tests has ended
                    for pid in self.pids.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)

    def copied(self) -> Asked | None:
        """In a new copy, what it is for; None in the server."""
        client = self.listener.accept()[0]
        asked, streams = received(client)
        pid = os.fork()
        if pid == 0:
            for key in list(self.chosen.get_map().values()):
                if isinstance(key.fileobj, int):
                    os.close(key.fileobj)
                elif isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self.chosen.close()
            client.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return asked
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(pid)
        self.pids[client], self.copies[ended] = pid, (pid, client)
        for source in (client, ended):
            self.chosen.register(source, selectors.EVENT_READ)
        client.sendall(b"%d\n" % pid)
        return None

    def ended(self, descriptor: int) -> None:
        """Tells the client of a copy how it ended."""
        pid, client = self.copies.pop(descriptor)
        self.chosen.unregister(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if client in self.pids:
            del self.pids[client]
            self.chosen.unregister(client)
            client.sendall(b"%d\n" % status)
            client.close()

    def lost(self, client: socket.socket) -> None:
        """Kills the copy of a client that was killed."""
        self.chosen.unregister(client)
        client.close()
        os.kill(self.pids.pop(client), signal.SIGKILL)


def received(client: socket.socket) -> tuple[Asked, list[int]]:
    """What a client asks for, and its streams."""
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "little"):
        asked += client.recv(1 << 20)
    return Asked(*json.loads(asked)), streams


def start(program: str, asked: Asked) -> None:
    """Does what Python does with these arguments."""
    arguments, folder, environ, file_size = asked
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_FSIZE, file_size)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where tests run in the background
    os.chdir(folder)
    os.environ.clear()
    os.environ.update({"PYTHON_EXEC": program} | environ)  # torchrun starts its processes with it
    sys.executable = program  # accelerate launch, too
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        arguments = arguments[1:]
    python_path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if arguments[0] in ("-m", "-c"):
        kind, target, *rest = arguments
        sys.argv = [kind, *rest]
        sys.path[:0] = [folder if kind == "-m" else "", *python_path]
    else:
        kind, target, sys.argv = "", arguments[0], arguments
        sys.path[:0] = [str(Path(target).resolve().parent), *python_path]
    if kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(target, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(target, run_name="__main__")


def run(program: str, asked: Asked) -> int:
    """As `start`; the exit status, negative for a signal."""
    try:
        start(program, asked)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(status: int) -> None:
    """Ends as Python does, but frees nothing: that would take longer than most tests."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    socket_path, program_path = sys.argv[1:]
    del sys.path[0]
    importlib.import_module("multiprocessing.spawn")  # its executable stays the real one
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # no copy touches the pages of what is there
    end(run(program_path, Server(socket_path).serve()))

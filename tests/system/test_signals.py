"""One policy of exit statuses, for every command."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from runs import with_research
from vocagno import SpanError
from vocagno.errors import InputError
from vocagno.system import signals as statuses
from vocagno.system.signals import Terminated, exit_status

ROOT = Path(__file__).parents[2]
KEPT = "Finished work is kept. Run the same command again to resume."
INSTALL = "pip install '.[{}]' in the checkout"
missing = partial(ModuleNotFoundError, "")


def failing(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize("status", [0, 1, 75])
def test_a_command_says_its_own_status(status, capsys):
    assert exit_status(lambda: status) == status
    assert capsys.readouterr() == ("", "")


def test_help_ends_with_success(capsys):
    assert exit_status(failing(SystemExit(0))) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (InputError("--x: wrong"), 2, "error: --x: wrong"),
        (SpanError("row 3"), 2, "error: row 3"),
        (FileNotFoundError(2, "No such file", "x"), 2, "error: [Errno 2] No such file: 'x'"),
        (missing(name="pyarrow.lib"), 2, f"error: needs pyarrow: {INSTALL.format('data')}"),
        (missing(name="torch"), 2, f"error: needs torch: {INSTALL.format('train')}"),
        (Terminated(), 75, f"stopped. {KEPT}"),
        (KeyboardInterrupt(), 130, f"interrupted. {KEPT}"),
    ],
)
def test_errors_become_a_status_and_one_line(error, status, printed, capsys):
    assert exit_status(failing(error)) == status
    assert capsys.readouterr() == ("", f"{printed}\n")


@pytest.mark.parametrize("error", [ValueError("a bug"), missing(name="vocagno.x"), SystemExit(3)])
def test_exceptions_that_are_bugs_pass(error):
    with pytest.raises(type(error)):
        exit_status(failing(error))


WAITING = """
import signal, sys, time
from vocagno.system.signals import run_with_signals
if len(sys.argv) > 1:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    sys.exit(run_with_signals([sys.executable, "-c", sys.argv[1]], {}))
got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)  # it saves, and a second signal would show
print(*map(int, got))
sys.exit(75)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_program_inside_a_program_gets_a_signal_once_and_ends_by_its_rules(send, number):
    """Ctrl-C in a terminal goes to the whole group, a scheduler's SIGTERM to one process."""
    command = [sys.executable, "-c", WAITING, WAITING]
    parts = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=with_research(), **parts) as outer:
        assert outer.stdout.readline() == "ready\n"
        send(outer.pid, number)
        assert outer.communicate(timeout=60)[0] == f"{int(number)}\n"
    assert outer.returncode == 75


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("inside", "number", "stdout", "status"),
    [
        ("", signal.SIGTERM, "", -signal.SIGTERM),  # as during its imports
        ("signal.signal(signal.SIGINT, lambda *_: sys.exit(0))", signal.SIGINT, "stopped\n", 0),
        ("", signal.SIGHUP, "", 0),  # ignored by both, as under nohup
    ],
)
def test_a_signal_that_a_program_inside_could_not_obey_ends_the_one_outside(
    inside, number, stdout, status
):
    lines = ["import signal, sys, time", inside, "print('ready', flush=True)", "time.sleep(2)"]
    outside = (
        "import signal, sys\nfrom vocagno.system.signals import run_with_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    sys.exit(run_with_signals([sys.executable, '-c', sys.argv[1]], {}))\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    command = [sys.executable, "-c", outside, "\n".join(lines)]
    with subprocess.Popen(command, env=with_research(), stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout.readline() == "ready\n"
        outer.send_signal(number)
        assert outer.communicate(timeout=60)[0] == stdout
    assert outer.returncode == status


def test_the_page_has_every_status():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    codes = {value for name, value in vars(statuses).items() if name.isupper() and name[0] != "_"}
    assert documented == codes


def test_the_page_has_every_command():
    pytest.importorskip("jsonargparse")
    from vocagno.cli.app import main

    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, command in main.commands.items():
        group, _, last = name.rpartition(" ")
        assert f"`vocagno {name}`" in page or (f"`{last}`" in page and f"`vocagno {group} " in page)
        assert re.fullmatch(r"[A-Z][a-z]+ .{10,80}\.", command.about), name


PROGRAMS = {
    "vocagno": ["-m", "vocagno", "describe"],
    "paper": ["-m", "research.paper", "overlap"],
    "study": ["-m", "research.study"],
    "quickstart": ["-m", "vocagno", "quickstart"],
    "train.py": [str(ROOT / "train.py")],
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_program_has_the_policy(program, tmp_path):
    """From a folder that is not the project's."""
    if "train" in program[0]:
        pytest.importorskip("torch")
    pytest.importorskip("jsonargparse")
    wrong = subprocess.run(
        [sys.executable, *program, "--nonsense"],
        cwd=tmp_path,
        env=with_research(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert re.fullmatch(r"error: --nonsense: no such option; see `.* --help`\n", wrong.stderr) or (
        wrong.stderr.endswith("error: --nonsense: no such option; see `vocagno train --help`\n")
    )

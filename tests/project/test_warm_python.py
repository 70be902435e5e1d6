"""Copies of a warm Python behave as new processes do."""

import signal
import subprocess
import sys
import time

import pytest

from warm_python import executable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a new Python is started"),
]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import threading, time; threading.Thread(target=time.sleep, args=[0.1]).start()", 0),
        ("import atexit, os; atexit.register(os._exit, 3)", 3),
    ],
)
def test_the_status_is_that_of_a_new_process(code, status):
    for python in (executable(), sys.executable):
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
        assert done.returncode == status


def test_arguments_folder_environment_and_streams(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(sys.argv, os.getcwd(), os.environ, sys.path[0], input())"
    )
    printed = [
        subprocess.run(
            [python, str(script), "-c", "x"],
            cwd=tmp_path,
            env={"NAME": "a b"},
            input="typed",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for python in (sys.executable, executable())
    ]
    assert printed[0] in printed[1].replace(f"'PYTHON_EXEC': '{executable()}', ", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_copy(tmp_path, number):
    beats = tmp_path / "beats"
    code = f"import time\nwhile True: open({str(beats)!r}, 'a').write('x'); time.sleep(0.01)"
    process = subprocess.Popen([executable(), "-c", code], stderr=subprocess.PIPE)
    while not beats.exists():
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=10)  # its end of the pipe is closed when the copy is gone
    assert process.returncode == -number
    size = beats.stat().st_size
    time.sleep(0.05)
    assert beats.stat().st_size == size

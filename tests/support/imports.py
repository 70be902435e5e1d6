"""Modules that an import loads."""

import subprocess
import sys


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    return {name.split(".")[0] for name in output.split()}

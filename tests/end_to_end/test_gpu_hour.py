"""`make gpu`: what a part that fails costs, what is carried, and the pages that are written."""

import json
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("psutil")

import gpu.__main__ as hour
import gpu_page
from gpu import packages
from gpu.preflight import check
from vocagno.errors import ConfigError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEVICE = {
    "date": "2026-01-02",
    "device": "NVIDIA H100",
    "cores": 16,
    "python": "3.12.3",
    "torch": "2.11.0",
    "cuda": "13.0",
    "transformers": "5.23.0",
    "accelerate": "1.15.0",
}


@dataclass(frozen=True)
class Script(hour.Part):
    """A part that is a few lines of Python."""

    text: str = ""

    def command(self, folder, *, rehearse):
        return [sys.executable, "-u", "-c", self.text]


LINE = 'print(\'{"what": "step"}\')\n'
FAILS = LINE + "raise SystemExit('no room on the device')"
HANGS = LINE + (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True)\n"
    'print(\'{"what": "child", "pid": %d}\' % child.pid)\n'
    "time.sleep(60)"
)


def carried_out(folder, monkeypatch, *parts, seconds=60):
    monkeypatch.setattr(hour, "PARTS", parts)
    monkeypatch.setattr(hour, "check", lambda *, rehearse: None)
    arguments = ["gpu", "--out", str(folder), "--rehearse", "--seconds", str(seconds)]
    monkeypatch.setattr(sys, "argv", arguments)
    status = hour.main()
    return status, [json.loads(line) for line in (folder / "results.jsonl").open()]


def test_a_part_that_fails_or_hangs_costs_itself(tmp_path, monkeypatch, capfd):
    import psutil

    parts = [
        Script("fails", 30, text=FAILS),
        Script("hangs", 4, text=HANGS),
        Script("works", 30, text=LINE),
    ]
    status, lines = carried_out(tmp_path, monkeypatch, *parts)
    assert status == 1
    outcomes = {line["part"]: line["outcome"] for line in lines if line["what"] == "part"}
    assert outcomes == {"fails": "failed", "hangs": "timed out", "works": "done"}
    measured = [line["part"] for line in lines if line["what"] == "step"]
    assert measured == ["fails", "hangs", "works"]
    (failed,) = [line for line in lines if line.get("outcome") == "failed"]
    assert "no room on the device" in failed["log"]
    (child,) = [line["pid"] for line in lines if line["what"] == "child"]
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    again = [Script(part.name, 30, text=LINE) for part in parts]
    assert carried_out(tmp_path, monkeypatch, *again, seconds=0.1) == (1, lines)
    assert "start again to continue" in capfd.readouterr().err
    status, lines = carried_out(tmp_path, monkeypatch, *again)
    assert status == 0
    assert [line["part"] for line in lines if line["what"] == "step"][3:] == ["fails", "hangs"]
    assert "works: is done" in capfd.readouterr().err


def wheel(folder, name, version, *requirements):
    path = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requirements]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines))
    return path


def test_wheels_that_lack_a_requirement_are_named(tmp_path):
    ours = wheel(
        tmp_path,
        "vocagno",
        "1.0",
        "numpy>=1.26",
        'vocagno[data]; extra == "train"',
        'datasets>=5; extra == "train"',
        'helper>=2; extra == "data"',
        'lm-eval; extra == "eval"',
    )
    assert packages.missing([ours]) == ['helper>=2; extra == "data" (of vocagno)']
    old = wheel(tmp_path, "helper", "1.0", "torch>=2.8", 'winning; sys_platform == "win32"')
    assert packages.missing([ours, old]) == ['helper>=2; extra == "data" (the wheel is 1.0)']
    new = wheel(tmp_path, "helper", "2.1")
    assert packages.missing([ours, new]) == []
    (lacking,) = packages.unmet([ours])
    assert lacking.startswith("helper>=2")
    assert lacking.endswith(": missing")


def test_without_a_device_or_wheels_it_says_so(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device; REHEARSE=1"):
        check(rehearse=False)
    monkeypatch.setattr("gpu.preflight.ROOT", tmp_path)
    monkeypatch.setattr("gpu.preflight.WHEELS", tmp_path / "target" / "gpu-wheels")
    with pytest.raises(ConfigError, match="no wheels; run `make gpu-wheels` first"):
        check(rehearse=True)
    (tmp_path / "target" / "gpu-wheels").mkdir(parents=True)
    ours = wheel(tmp_path / "target" / "gpu-wheels", "vocagno", "1.0")
    with pytest.raises(ConfigError, match="from other sources than this checkout's"):
        check(rehearse=True)
    (ours.parent / packages.SOURCES).write_text(packages.sources_digest(tmp_path))
    check(rehearse=True)
    (tmp_path / "Cargo.lock").write_text("changed")
    with pytest.raises(ConfigError, match="from other sources than this checkout's"):
        check(rehearse=True)


STEP = {
    "what": "step",
    "part": "steps",
    "group": "eager",
    "kind": "guided",
    "seconds": 0.5,
    "fastest": 0.4,
    "slowest": 0.6,
    "ratio": 0.97,
    "ratio_to": "dense",
    "peak_mb": 61_000,
    "rows": 8,
    "seq_len": 2048,
    "tokens_per_second": 32_768,
    "mfu": 0.371,
}


def test_a_page_shows_what_was_measured_and_says_what_was_not(tmp_path):
    results, docs = tmp_path / "results.jsonl", tmp_path / "docs"
    docs.mkdir()
    for name in ("training.md", "scores.md"):
        (docs / name).write_text((ROOT / "docs" / name).read_text(encoding="utf-8"))
    lines = [
        STEP | {"seconds": 9.0} | DEVICE,
        STEP | DEVICE,  # the later one counts
        STEP | {"kind": "dense", "outcome": "out of memory"} | DEVICE,
        {"what": "part", "part": "steps", "outcome": "timed out", "seconds": 330.0},
    ]
    del lines[2]["seconds"]
    results.write_text(json.dumps(lines[3]) + "\n")
    assert "No part printed a result." in gpu_page.page(gpu_page.read(results))
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    gpu_page.write(gpu_page.read(results), docs)
    page = (docs / "gpu.md").read_text()
    row = "| eager | guided | 0.500 (0.400 to 0.600) | 32,768 | 37.1% | 61.0 GB | 0.970 of dense |"
    assert row in page
    assert "| eager | dense | out of memory |" in page
    assert "| steps | timed out | 330 |" in page
    assert "NVIDIA H100, 16 cores, Python 3.12.3, torch 2.11.0, CUDA 13.0" in page
    assert "## Scoring under a 7B teacher\n\nNot measured" in page
    assert row in (docs / "training.md").read_text()
    assert "Not measured" in (docs / "scores.md").read_text()


def test_the_pages_are_those_of_the_newest_results(tmp_path):
    found = sorted((ROOT / "benches" / "results").glob("*-gpu.jsonl"))
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in gpu_page.PLACES:
        (docs / name).write_text((ROOT / "docs" / name).read_text(encoding="utf-8"))
    gpu_page.write(gpu_page.read(found[-1] if found else None), docs)
    for path in docs.iterdir():
        assert path.read_text() == (ROOT / "docs" / path.name).read_text(encoding="utf-8")
    (oldest,) = re.findall(r'"torch>=(.*)"', (ROOT / "pyproject.toml").read_text())
    assert f"torch >= {oldest}, accelerate" in (ROOT / "docs" / "gpu.md").read_text()

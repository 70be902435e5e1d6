"""Fixtures of the tests of `python -m vocagno.paper`."""

import pytest


@pytest.fixture
def command(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    pytest.importorskip("jsonargparse")
    from vocagno.paper.__main__ import main

    monkeypatch.chdir(tmp_path)
    return lambda *arguments: main(list(map(str, arguments)))

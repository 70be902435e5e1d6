"""Fixtures for corpora and stores at an address."""

import pytest


@pytest.fixture
def server(monkeypatch, tmp_path):
    """S3 on this machine; skips without moto and s3fs."""
    from s3_server import S3Server

    monkeypatch.setenv("VOCAGNO_CACHE", str(tmp_path / "here"))
    server = S3Server(monkeypatch)
    yield server
    server.stop()

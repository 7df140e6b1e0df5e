"""What passes between the server and the sites of a test."""

import pytest

from federation.secure_parts import Recorder


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr("resolvent.federation.engines.in_process.InProcess", Recorder)
    monkeypatch.setattr(Recorder, "messages", [])
    monkeypatch.setattr(Recorder, "lost", {})
    return Recorder

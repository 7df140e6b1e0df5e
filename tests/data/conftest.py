"""Folders for data files."""

import pytest


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """An empty folder that is the first data folder; the cache folder is empty, too."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("RESOLVENT_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder

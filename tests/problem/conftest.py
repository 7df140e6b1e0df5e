import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data. CI names it; a machine without has nothing to read, and says so."""
    folder = os.environ.get("RESOLVENT_DATA")
    if not folder:
        pytest.skip("RESOLVENT_DATA is not set: no folder with the real data (mnist/, emnist/, ...); see docs/data.md")
    if not Path(folder).is_dir():
        pytest.fail(f"RESOLVENT_DATA={folder!r} is no folder: set it to the one with the real data; see docs/data.md",
                    pytrace=False)
    return Path(folder)

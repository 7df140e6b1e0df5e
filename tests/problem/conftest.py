import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data; a test that needs it fails without, for a skipped test proves nothing."""
    folder = os.environ.get("RESOLVENT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.fail(f"RESOLVENT_DATA={folder!r}: set it to the folder with the real data (mnist/, emnist/, ...); "
                    "see docs/data.md", pytrace=False)
    return Path(folder)

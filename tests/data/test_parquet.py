"""Parquet files are read where no thread can start."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from pathlib import Path
import pandas as pd
from resolvent.data.files.data_files import read_parquet

frame, path = pd.DataFrame({"method": ["a", "b", None] * 30, "value": 1.0}), Path(sys.argv[1])
frame.to_parquet(path, index=False)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2_000_000,) * 2)  # less than the stack of a thread
print(read_parquet(path).equals(frame))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc")
def test_a_file_is_read_without_threads(tmp_path):
    """pandas.read_parquet waits for ever here."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "table.parquet")], capture_output=True,
                          text=True, timeout=600, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr

"""Tests that send signals do so in the background of a shell and under nohup, too."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from signals import heard_signals, start_process

number = int(sys.argv[1])
assert signal.getsignal(number) == signal.SIG_IGN
sleep = [sys.executable, "-c", "print('it runs', flush=True); import time; time.sleep(3600)"]
process = start_process(sleep, stdout=-1)
process.stdout.readline()
process.send_signal(number)
try:
    with heard_signals():
        os.kill(os.getpid(), number)
except KeyboardInterrupt:
    print("heard")
os.kill(os.getpid(), number)  # it is ignored again
print(process.wait(60))
"""


@pytest.mark.kill
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_is_heard(number):
    line = f"trap '' {signal.Signals(number).name.removeprefix('SIG')}; exec \"$0\" -c \"$1\" {int(number)}"
    done = subprocess.run(["sh", "-c", line, sys.executable, PROGRAM], cwd=Path(__file__).parent, timeout=600,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["heard", str(-number)]

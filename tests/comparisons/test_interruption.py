"""Ctrl-C, SIGTERM and SIGHUP: an answer within two seconds that says how to continue, at any moment."""

import os
import signal
import subprocess
import sys
import time

import pytest

from resolvent.cli import interruption
from signals import heard_signals, start_process

pytestmark = pytest.mark.kill

# A process that runs the command line with a function in the place of its parser, and says when that begins.
PROGRAM = """
import ctypes, gc, os, signal, sys, threading, time
sys.argv = ["resolvent", "run", "a file.yaml", "--out", "out"]
from resolvent import cli
from resolvent.data.files.atomic_files import finish_before_interruption

def compute():  # the main thread runs no Python code
    print("it runs", flush=True)
    while True:
        ctypes.CDLL(None).poll(None, 0, 3_600_000)

def wait():
    print("it runs", flush=True)
    time.sleep(3600)

def leave_a_thread():  # Python would wait for it at its exit, as JAX does for other processes
    threading.Thread(target=time.sleep, args=(3600,)).start()
    wait()

def convert():  # as compiled modules do
    try:
        wait()
    except KeyboardInterrupt as error:
        raise ImportError("the module could not be initialised") from error

def load():  # a module that prints the exception, as NumPy's interface in C does
    with open("slow_module.py", "w") as file:
        file.write("import time, traceback\\ntry:\\n    print('it runs', flush=True)\\n    time.sleep(3600)\\n"
                   "except KeyboardInterrupt:\\n    traceback.print_exc()\\n    raise ImportError")
    sys.path.insert(0, ".")
    import slow_module

def collect():  # as JAX does; Python cannot raise an exception from it
    gc.callbacks.append(lambda phase, info: phase == "start" and print("it runs", flush=True) or time.sleep(5))
    gc.collect()
    gc.callbacks.clear()
    time.sleep(3600)

def write():
    with finish_before_interruption():
        print("it runs", flush=True)
        time.sleep({writing})
        print("the file is complete", flush=True)
    time.sleep(3600)

def begin():
    {work}()

cli._run = begin
cli.main()
"""


def interrupted(work, number, *, writing=0.3, times=1):
    """Exit code, standard output and standard error of a process whose work takes an hour if nothing interrupts it."""
    process = start_process([sys.executable, "-c", PROGRAM.format(work=work, writing=writing)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "it runs\n"
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


@pytest.mark.parametrize(("work", "number", "name"), [
    ("wait", signal.SIGINT, ""), ("wait", signal.SIGTERM, " by SIGTERM"), ("wait", signal.SIGHUP, " by SIGHUP"),
    ("compute", signal.SIGTERM, " by SIGTERM"), ("convert", signal.SIGINT, ""),
    ("collect", signal.SIGTERM, " by SIGTERM"), ("load", signal.SIGINT, ""), ("leave_a_thread", signal.SIGINT, "")])
def test_answer_and_exit_code(work, number, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = interrupted(work, number)
    assert code == 128 + number
    assert err == f"\ninterrupted{name}: continue with: resolvent run 'a file.yaml' --out out --resume\n"


def test_a_file_is_finished_first_and_a_second_signal_ends_at_once():
    code, out, err = interrupted("write", signal.SIGTERM)
    assert (code, out) == (143, "the file is complete\n")
    assert err.count("\n") == 2
    code, out, _ = interrupted("write", signal.SIGINT, writing=3600, times=2)
    assert (code, out) == (130, "")


def test_interruption_within_the_imports_has_no_traceback():
    """At several moments from the start of the handlers on, while JAX and the experiment are imported."""
    program = ("import os, signal, sys, threading\n"
               "sys.argv = ['resolvent', 'show', 'digits']\n"
               "from resolvent import cli\n"
               "def interrupt():\n"
               "    while 'jax' not in sys.modules: pass\n"
               "    os.kill(os.getpid(), signal.SIGINT)\n"
               "threading.Thread(target=interrupt, daemon=True).start()\n"
               "cli.main()")
    process = start_process([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err == "\ninterrupted: start again with: resolvent show digits\n"


def test_ignored_signals_stay_ignored_and_handlers_are_restored():
    with heard_signals():
        before = {number: signal.getsignal(number) for number in interruption.INTERRUPTIONS}
        former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        try:
            with interruption.answer_interruptions():
                os.kill(os.getpid(), signal.SIGHUP)
                assert all(signal.getsignal(number) is not before[number] for number in (signal.SIGINT, signal.SIGTERM))
        finally:
            signal.signal(signal.SIGHUP, former)
        assert {number: signal.getsignal(number) for number in interruption.INTERRUPTIONS} == before

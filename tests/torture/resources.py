"""Missing resources: full disks, limits, files at the wrong path, broken output, two runs at once.

A command that cannot do its work says so in one line. When the fault is gone, ``--resume`` gives the right result.
"""

import contextlib
import itertools
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from torture.kills import answer_of
from torture.outcome import ENDED, REFUSED, RIGHT, SKIPPED, TRACEBACK, WRONG, Outcome, judge_refusal
from torture.scenario import EXPERIMENT, RESUME, RUN, command, difference, new_folder, quick_runs, truth

KIND = "resource faults"
CASES = {}
_PYTHON = f"{sys.executable} -m resolvent.cli"
_KILOBYTES_OF_DISK = (4, 12, 24, 40, 64, 96, 128, 160, 200, 256)
_FILE_SIZES = (0, 100, 1_000, 2_600, 4_000, 6_000, 10_000, 20_000, 40_000, 80_000)
_OPEN_FILES = tuple(range(0, 14))
_MEGABYTES_OF_MEMORY = (300, 600, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000)


def run_case(name, folder):
    """The outcomes of one fault."""
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        return [CASES[name](new_folder(parent))._replace(kind=KIND, case=name)]


def _case(name):
    def register(function):
        CASES[name] = function
        return function
    return register


def _outcome(verdict, detail=""):
    return Outcome(KIND, "", verdict, detail)


def _judge(answer, case, names=()):
    """A run under a fault, then ``--resume`` without it."""
    if answer.code == 0 and not answer.has_traceback:
        wrong = difference(case / "out")
        return _outcome(WRONG if wrong else RIGHT, wrong)
    refused = _outcome(*judge_refusal(answer, names))
    if refused.verdict != REFUSED:
        return refused
    with quick_runs():
        resumed = command(*RESUME, folder=case)
    if resumed.code:
        return _outcome(TRACEBACK if resumed.has_traceback else WRONG,
                        f"{refused.detail}\nthen --resume: exit code {resumed.code}: {resumed.err[-3000:]}")
    wrong = difference(case / "out")
    return _outcome(WRONG, f"{refused.detail}\nthen --resume: {wrong}") if wrong else refused


def _run(case, *arguments):
    with quick_runs():
        return command(*(arguments or RUN), folder=case)


def _shell(line, case, **settings):
    """The answer of a shell command in a process of its own."""
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                   "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "torture-xla"), **settings}
    return answer_of(["sh", "-c", line], case, environment)


# The disk


@contextlib.contextmanager
def _disk(folder, options):
    """A file system of its own in memory. Only root can make one; otherwise False."""
    folder.mkdir(exist_ok=True)
    is_mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False,
                                capture_output=True).returncode == 0 if shutil.which("mount") else False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _full_disk(size, case):
    disk = case / "disk"
    with _disk(disk, f"size={size}k") as is_mounted:
        if not is_mounted:
            return _outcome(SKIPPED, "only root can mount a small disk")
        (disk / "small.yaml").symlink_to(truth() / "small.yaml")
        answer = _run(disk)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        return _judge(answer, disk)


def _file_size(size, case):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        answer = _run(case)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return _judge(answer, case)


for _size in _KILOBYTES_OF_DISK:
    _case(f"a disk of {_size} KB")(lambda case, size=_size: _full_disk(size, case))
for _size in _FILE_SIZES:
    _case(f"files of at most {_size} bytes")(lambda case, size=_size: _file_size(size, case))


@_case("a full disk while a report is drawn")
def _full_disk_of_report(case):
    disk = case / "disk"
    with _disk(disk, "size=256k") as is_mounted:
        if not is_mounted:
            return _outcome(SKIPPED, "only root can mount a small disk")
        shutil.copytree(truth() / "out", disk / "out")
        page = (disk / "out" / "report.html").read_bytes()
        with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(4096))
                filler.flush()
        answer = _run(disk, "show", "out", "--redraw")
        if (disk / "out" / "report.html").read_bytes() != page:
            return _outcome(WRONG, "the old report is damaged")
        return _outcome(RIGHT) if answer.code == 0 else _outcome(*judge_refusal(answer))


@_case("a read-only file system")
def _read_only(case):
    disk = case / "disk"
    with _disk(disk, "size=4m") as is_mounted:
        if not is_mounted:
            return _outcome(SKIPPED, "only root can mount a read-only disk")
        shutil.copy(truth() / "small.yaml", disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        answer = _run(disk)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        return _judge(answer, disk)


@_case("a report on a read-only file system")
def _read_only_report(case):
    disk = case / "disk"
    with _disk(disk, "size=4m") as is_mounted:
        if not is_mounted:
            return _outcome(SKIPPED, "only root can mount a read-only disk")
        shutil.copytree(truth() / "out", disk / "out")
        shutil.copy(truth() / "small.yaml", disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        answers = [_run(disk, "show", "out", "--redraw"), _run(disk, *RESUME)]
        return _all_refused(answers)


@_case("a folder without permission")
def _no_permission(case):
    if os.geteuid() == 0:
        return _outcome(SKIPPED, "root may write everywhere")
    case.chmod(0o555)
    answer = _run(case)
    case.chmod(0o755)
    return _judge(answer, case)


def _all_refused(answers):
    """Each answer is a success or a refusal."""
    outcomes = [judge_refusal(a) for a in answers if a.code or a.has_traceback]
    worst = next((o for o in outcomes if o[0] != REFUSED), None)
    return _outcome(*(worst or (REFUSED if outcomes else RIGHT, "; ".join(o[1] for o in outcomes))))


# Files and folders at the wrong path, and names


def _in_the_way(prepare, arguments, case):
    prepare(case)
    answer = _run(case, *arguments)
    if answer.code == 0 and not answer.has_traceback:
        return _outcome(RIGHT)
    return _outcome(*judge_refusal(answer))


def _file(name):
    def prepare(case):
        (case / name).parent.mkdir(parents=True, exist_ok=True)
        (case / name).write_text("x")
    return prepare


def _folder(name):
    return lambda case: (case / name).mkdir(parents=True)


def _finished_without(name):
    """A finished run with a folder where a file should be."""
    def prepare(case):
        shutil.copytree(truth() / "out", case / "out")
        (case / "out" / name).unlink()
        (case / "out" / name).mkdir()
    return prepare


def _nothing(case):
    pass


def _experiment(text):
    return lambda case: (case / "odd.yaml").write_text(text, encoding="utf-8")


_IN_THE_WAY = {
    "out is a file": (_file("out"), RUN), "out.partial is a file": (_file("out.partial"), RUN),
    "out.partial is a file, --resume": (_file("out.partial"), RESUME),
    "out.partial is a file, --overwrite": (_file("out.partial"), (*RUN, "--overwrite")),
    "out is a file, --overwrite": (_file("out"), (*RUN, "--overwrite")),
    "the parent of out is a file": (_nothing, ("run", "small.yaml", "--out", "small.yaml/out")),
    "runs is a file": (_file("runs"), ("run", "small.yaml")),
    "runs is a file, --resume": (_file("runs"), ("run", "small.yaml", "--resume")),
    "checkpoints is a file": (_file("out.partial/checkpoints"), RESUME),
    "a method's checkpoints are a file": (_file("out.partial/checkpoints/00"), RESUME),
    "a checkpoint is a file": (_file("out.partial/checkpoints/00/000000002"), RESUME),
    "a folder has the name of the lock": (_folder(".out.lock"), RUN),
    "a folder has the name of a temporary file": (_folder("out.partial/.experiment.yaml.partial/x"), RESUME),
    "experiment.yaml of the unfinished run is a folder": (_folder("out.partial/experiment.yaml/x"), RESUME),
    "the experiment is a folder": (_folder("folder.yaml"), ("run", "folder.yaml", "--out", "out")),
    "the experiment is missing": (_nothing, ("run", "missing.yaml", "--out", "out")),
    "out is a link to itself": (lambda case: (case / "out").symlink_to("out"), RUN),
    "out is a link to nothing": (lambda case: (case / "out").symlink_to("nothing"), RUN),
    "out is the current folder": (_nothing, ("run", "small.yaml", "--out", ".", "--overwrite")),
    "a name of 300 characters": (_nothing, ("run", "small.yaml", "--out", "x" * 300)),
    "a name of 250 characters": (_nothing, ("run", "small.yaml", "--out", "x" * 250)),
    "a path of 6,000 characters": (_nothing, ("run", "small.yaml", "--out", "x/" * 3000)),
    "an experiment's name of 300 characters": (_nothing, ("run", "x" * 300 + ".yaml")),
    "a name that is not UTF-8": (_nothing, ("run", "small.yaml", "--out", "a\udcff")),
    "a label of 300 characters": (_experiment(EXPERIMENT.replace("Scaffold:", f"{'x' * 300}:")),
                                  ("run", "odd.yaml", "--out", "out")),
    "a label that is a path": (_experiment(EXPERIMENT.replace("Scaffold:", "../../x:")),
                               ("run", "odd.yaml", "--out", "out")),
    "an experiment that is not UTF-8": (lambda case: (case / "odd.yaml").write_bytes(b"\xff\xfe\x00title: \xff"),
                                        ("run", "odd.yaml", "--out", "out")),
    "a report of nothing": (_nothing, ("show", "nothing", "--redraw")),
    "a report of a file": (_nothing, ("show", "small.yaml", "--redraw")),
    "a report of a name of 300 characters": (_nothing, ("show", "x" * 300, "--redraw")),
    **{f"{name} is a folder, {arguments[0]}": (_finished_without(name), arguments)
       for name in ("summary.json", "metrics.parquet", "experiment.yaml", "report.html")
       for arguments in (("show", "out", "--redraw"), RESUME)},
}
for _name, (_prepare, _arguments) in _IN_THE_WAY.items():
    _case(_name)(lambda case, p=_prepare, a=_arguments: _in_the_way(p, a, case))


@_case("the current folder is removed")
def _removed_folder(case):
    answer = _shell(f"mkdir d && cd d && rmdir ../d && {_PYTHON} run ../small.yaml", case)
    return _outcome(RIGHT) if answer.code == 0 and not answer.has_traceback else _outcome(*judge_refusal(answer))


@_case("the folder is removed while the run writes to it")
def _removed_run(case):
    from resolvent.simulator.checkpoint.checkpoints import Checkpoint

    write, calls = Checkpoint.write, itertools.count()

    def removing(self, folder, *arguments, **keywords):
        if next(calls) == 2:
            shutil.rmtree(case / "out.partial")
        return write(self, folder, *arguments, **keywords)
    with mock.patch.object(Checkpoint, "write", removing):
        answer = _run(case)
    return _judge(answer, case)


# Limits of the process


def _open_files(count, case):
    handles = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(handles + count, hard), hard))
    try:
        answer = _run(case)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _judge(answer, case)


def _memory(megabytes, case):
    answer = _shell(f"ulimit -c 0; ulimit -v {megabytes * 1024}; exec {_PYTHON} {' '.join(RUN)}", case)
    # Libraries in C and C++ end the process when they get no memory: by a signal, or with a message of their own.
    if answer.code < 0 or answer.code > 128 or "OpenBLAS error" in answer.err:
        resumed = _run(case, *RESUME)
        wrong = f"then --resume: exit code {resumed.code}: {resumed.err}" if resumed.code else difference(case / "out")
        return _outcome(WRONG if wrong else ENDED, wrong or f"exit code {answer.code}: {answer.err[-500:]}")
    return _judge(answer, case)


for _count in _OPEN_FILES:
    _case(f"{_count} more open files")(lambda case, count=_count: _open_files(count, case))
for _size in _MEGABYTES_OF_MEMORY:
    _case(f"{_size} MB of address space")(lambda case, size=_size: _memory(size, case))


@_case("more data than memory")
def _too_large(case):
    model = "model: {name: mlp, width: 10000000000}"
    (case / "odd.yaml").write_text(EXPERIMENT.replace("model: logistic", model))
    return _outcome(*judge_refusal(_run(case, "run", "odd.yaml", "--out", "out")))


# Input and output


def _output(line, case):
    """A command whose output cannot be written: one line, or silence; a run can be resumed."""
    answer = _shell(line.format(command=_PYTHON, run=" ".join(RUN)), case)
    if answer.has_traceback or (answer.code < 0 and answer.code != -signal.SIGPIPE):
        return _outcome(TRACEBACK if answer.has_traceback else WRONG, f"exit code {answer.code}: {answer.err[-2000:]}")
    if " run " in line or "{run}" in line:
        resumed = _run(case, *RESUME)
        wrong = difference(case / "out") if resumed.code == 0 else f"--resume: {resumed.err}"
        if wrong:
            return _outcome(WRONG, wrong)
    return _outcome(RIGHT if answer.code in (0, 141) else REFUSED, answer.err[-500:])


for _name, _line in {
    "run > /dev/full": "{command} {run} > /dev/full", "list > /dev/full": "{command} list > /dev/full",
    "show > /dev/full": "{command} show digits > /dev/full", "--help > /dev/full": "{command} --help > /dev/full",
    "run 2> /dev/full": "{command} {run} 2> /dev/full",
    "an error 2> /dev/full": "{command} run missing.yaml 2> /dev/full",
    "run | true": "{command} {run} | true", "list | head": "{command} list | head -c 1",
    "show | true": "{command} show digits | true", "--help | true": "{command} --help | true",
    "list --json | head": "{command} list algorithms --json | head -c 1",
    "run with closed stdin": "{command} {run} <&-", "run with closed stdout": "{command} {run} >&-",
    "run with closed stderr": "{command} {run} 2>&-", "run with all closed": "{command} {run} <&- >&- 2>&-",
    "list with closed stdout": "{command} list >&-", "show with closed stdout": "{command} show digits >&-",
    "an error with closed stderr": "{command} run missing.yaml 2>&-",
    "list in ASCII": "PYTHONIOENCODING=ascii LC_ALL=C {command} list",
    "an unknown locale": "LC_ALL=xx_XX.UTF-8 LANG= {command} show digits",
}.items():
    _case(_name)(lambda case, line=_line: _output(line, case))


# The environment


# By a variable with such a beginning a library chooses its kernels and its threads, on which rounding depends.
_ROUNDING = ("OPENBLAS_", "MKL_", "NVPL_", "BLIS_", "ARMPL_", "VECLIB_", "ONEDNN_", "DNNL_", "NPY_", "OMP_", "GOTO_")


def _environment(settings, case):
    answer = _shell(f"env {settings} {_PYTHON} {' '.join(RUN)}", case)
    return _judge(answer, case)


def no_environment():
    """The arguments of ``env`` for an empty environment in which results have the same rounding."""
    kept = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_ROUNDING)]
    return shlex.join(["-i", *kept]) + ' XLA_FLAGS="$XLA_FLAGS" PYTHONPATH="$PYTHONPATH"'


@_case("no environment")
def _empty(case):
    return _environment(no_environment(), case)


for _name, _settings in {
    "no HOME": "-u HOME -u XDG_CACHE_HOME -u JAX_COMPILATION_CACHE_DIR",
    "HOME is missing": "-u XDG_CACHE_HOME -u JAX_COMPILATION_CACHE_DIR HOME=/proc/missing",
    "HOME is a file": "-u XDG_CACHE_HOME -u JAX_COMPILATION_CACHE_DIR HOME=/dev/null",
    "TMPDIR is missing": "TMPDIR=/proc/missing",
    "the compilation cache is a file": "JAX_COMPILATION_CACHE_DIR=/dev/null",
    "RESOLVENT_DATA is missing": "RESOLVENT_DATA=/proc/missing",
}.items():
    _case(_name)(lambda case, settings=_settings: _environment(settings, case))


@_case("the clock goes back")
def _clock(case):
    start, steps = time.time(), itertools.count()
    with mock.patch.object(time, "time", side_effect=lambda: start - 3600 * next(steps)):
        return _judge(_run(case), case)


@_case("files from the future")
def _future(case):
    from torture.disk import Disk

    copy = case.with_name("future")
    with Disk(case, stop_at=150, copy=copy).watched():
        _run(case)
    for path in copy.rglob("*"):
        os.utime(path, (2**31, 2**31))
    return _judge(_run(copy, *RESUME), copy)


# Two runs, and --resume


@_case("another process holds the lock")
def _two_runs(case):
    from resolvent.data.files.folder_lock import locked

    with locked(case / "out"):
        answers = [_shell(f"{_PYTHON} {' '.join(arguments)}", case) for arguments in (RUN, RESUME)]
    outcomes = [judge_refusal(answer, (str(os.getpid()),)) for answer in answers]
    worst = next((o for o in outcomes if o[0] != REFUSED), outcomes[0])
    return _outcome(*worst) if worst[0] != REFUSED or not (case / "out").exists() else _outcome(WRONG, "out exists")


@_case("two runs at once")
def _at_once(case):
    line = f"{_PYTHON} {' '.join(RUN)}"
    answer = _shell(f"{line} 2> first.err & {line} 2> second.err; wait", case)
    errors = [(case / name).read_text() for name in ("first.err", "second.err")]
    wrong = difference(case / "out") or ("" if sum("error:" in text for text in errors) == 1 else str(errors))
    has_traceback = answer.has_traceback or any("Traceback" in text for text in errors)
    return _outcome(TRACEBACK if has_traceback else WRONG if wrong else RIGHT, wrong)


@_case("the lock of a killed process")
def _killed_holder(case):
    program = "import os; from pathlib import Path; from resolvent.data.files.folder_lock import locked\n" \
              "with locked(Path('out')): os.kill(os.getpid(), 9)"
    answer = answer_of([sys.executable, "-c", program], case, {})
    if answer.code != -signal.SIGKILL or not (case / ".out.lock").exists():
        return _outcome(WRONG, f"no lock was left: {answer}")
    return _judge(_run(case), case)


@_case("--resume of nothing")
def _resume_nothing(case):
    return _judge(_run(case, *RESUME), case)


@_case("--resume of a complete run")
def _resume_complete(case):
    shutil.copytree(truth() / "out", case / "out")
    return _judge(_run(case, *RESUME), case)


def _early_signal(number, seconds, case):
    answer = answer_of([sys.executable, "-m", "resolvent.cli", "list"], case, {}, signal_after=(number, seconds))
    is_plain = not answer.has_traceback and answer.code in (0, -number, 128 + number)
    return _outcome(RIGHT if is_plain else TRACEBACK if answer.has_traceback else WRONG,
                    f"exit code {answer.code}: {answer.err[-2000:]}")


for _number, _seconds in itertools.product((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), (0.0, 0.3, 1.0)):
    _case(f"{_number.name} {_seconds} s after the start")(
        lambda case, number=_number, seconds=_seconds: _early_signal(number, seconds, case))

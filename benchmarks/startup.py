"""The time of ``resolvent run digits``, of its start by part and of all of it by cause, with a warm and a cold cache.

    python benchmarks/startup.py [--repeats 5] [--only PART] [--out benchmarks/startup.json]

``whole`` is the CPU time of new processes from their start to their end, without a cache of compiled programs and with
that of the process before: ``resolvent run digits``, and two rounds of FedAvg on a ResNet-20. ``causes`` divides that
of one further process of each kind, by samples of its stack (see ``startup_causes.py``).

For the other figures each run is a new process, which is stopped when the progress bar first moves: five rounds of the
first method are done then, and its models are evaluated. Cold: the cache of compiled programs is empty; warm: the run
before has filled it. ``CPU seconds`` are those of new processes that import JAX, import the library, use its first
preset, print the help, or list the algorithms, in alternation. All processes read compiled modules, as those of an
installed wheel do. ``imports`` are measured by Python's -X importtime, by package, once. Tracing, lowering, compiling
and loading from the cache are JAX's own events, which are part of ``before the rounds`` and ``rounds``.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_EVENTS = {"/jax/core/compile/jaxpr_trace_duration": "tracing",
           "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
           "/jax/core/compile/backend_compile_duration": "compiling or loading"}
_COMMAND = str(Path(sys.executable).with_name("resolvent"))
_STATEMENTS = {  # label -> arguments of Python
    "import jax": ["-c", "import jax"],
    "import resolvent": ["-c", "import resolvent"],
    "rv.fedavg(rv.SGD(0.1))": ["-c", "import resolvent as rv; rv.fedavg(rv.SGD(0.1))"],
    "resolvent --help": [_COMMAND, "--help"],
    "resolvent list algorithms": [_COMMAND, "list", "algorithms"],
}
_PARTS = ("python and imports", "experiment", "data and models", "before the rounds", "rounds")


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each process compiles the library's modules
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--only", choices=("commands", "whole"), help="only measure the CPU seconds of imports and "
                        "commands, or of whole processes; the file's other figures stay")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    if options.only:
        record = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
        part = {"CPU seconds": cpu_seconds(options.repeats)} if options.only == "commands" else {
            "whole": whole_processes(options.repeats)}
        write(record | part, options.out)
        return
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for kind in runs:
                runs[kind].append(measure(Path(folder)))
    record = {"command": f"python benchmarks/startup.py --repeats {options.repeats}",
                              "repeats": options.repeats}
    for kind, seconds in runs.items():
        record[kind] = {part: round(statistics.median(run[part] for run in seconds), 3) for part in seconds[0]}
        record[kind]["all"] = [round(run["to the first rounds"], 3) for run in seconds]
    record |= {"imports": imports(), "CPU seconds": cpu_seconds(options.repeats),
               "whole": whole_processes(options.repeats)}
    print(f"{'seconds':28}{'cold':>8}{'warm':>8}")
    for part in record["cold"]:
        if part != "all":
            print(f"{part:28}{record['cold'][part]:8.2f}{record['warm'][part]:8.2f}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in record["imports"]["shares"].items())
    print(f"imports: {shares}")
    write(record, options.out)


def write(record: dict[str, Any], path: Path | None) -> None:
    """Print the CPU seconds, and write all figures if there is a path."""
    for label, of_label in record.get("CPU seconds", {"median": {}})["median"].items():
        print(f"{label:28}{of_label:8.2f} s of CPU")
    for label, of_label in record.get("whole", {"processes": {}})["processes"].items():
        for kind, of_kind in of_label.items():
            causes = ", ".join(f"{cause} {seconds:.1f}" for cause, seconds in of_kind["causes"].items())
            print(f"{label}, {kind}: {of_kind['median']:.1f} s of CPU ({causes})")
    if path:
        path.write_text(json.dumps(record, indent=1) + "\n")


def cpu_seconds(repeats: int) -> dict[str, Any]:
    """CPU seconds of new processes, the median of the repeats in alternation."""
    seconds: dict[str, list[float]] = {label: [] for label in _STATEMENTS}
    for _ in range(repeats):
        for label, arguments in _STATEMENTS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL,
                           env=os.environ | {"PJRT_NPROC": "1", "OMP_NUM_THREADS": "1"})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds[label].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"command": f"python benchmarks/startup.py --only commands --repeats {repeats}", "repeats": repeats,
            "median": {label: round(statistics.median(of_label), 2) for label, of_label in seconds.items()}}


def whole_processes(repeats: int) -> dict[str, Any]:
    """CPU seconds of whole processes without and with stored programs, and by cause."""
    processes: dict[str, dict[str, Any]] = {}
    for label in ("digits", "ResNet-20"):
        seconds: dict[str, list[float]] = {"cold": [], "warm": []}
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                for of_kind in seconds.values():
                    of_kind.append(whole_process(label, Path(folder))[0])
        with tempfile.TemporaryDirectory() as folder:
            causes = {kind: whole_process(label, Path(folder), is_sampled=True)[1] for kind in seconds}
        processes[label] = {kind: {"median": round(statistics.median(of_kind), 1),
                                   "all": [round(value, 1) for value in of_kind], "causes": causes[kind]}
                            for kind, of_kind in seconds.items()}
    return {"command": f"python benchmarks/startup.py --only whole --repeats {repeats}", "repeats": repeats,
            "load of the machine": [round(load, 1) for load in os.getloadavg()], "processes": processes}


def whole_process(label: str, folder: Path, *, is_sampled: bool = False) -> tuple[float, dict[str, float]]:
    """The CPU seconds of a new process, and by cause, with its caches in a folder."""
    answer, command = folder / "causes.json", [sys.executable, str(Path(__file__).with_name("startup_causes.py"))]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as runs:
        subprocess.run([*command, label, *([str(answer)] if is_sampled else [])], check=True, cwd=runs,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PJRT_NPROC": "1",
                                         "OMP_NUM_THREADS": "1", "JAX_ENABLE_COMPILATION_CACHE": "true"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    causes = json.loads(answer.read_text()) if is_sampled else {}
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            {cause: round(causes[cause], 2) for cause in sorted(causes, key=causes.__getitem__, reverse=True)})


def measure(folder: Path) -> dict[str, float]:
    """The seconds of one new process, with its caches in a folder."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as runs:
        subprocess.run([sys.executable, __file__, "--child", str(answer)], check=True, cwd=runs,
                       env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PJRT_NPROC": "1",
                                         "BENCHMARK_SPAWNED": str(time.monotonic())})
    seconds: dict[str, float] = json.loads(answer.read_text())
    return seconds


def child(answer: Path) -> None:
    """Do what the command line does, note the time of each part, and end after the first rounds."""
    marks, cpu = {"begin": float(os.environ["BENCHMARK_SPAWNED"])}, {"begin": 0.0}

    def mark(part: str) -> None:
        marks[part], cpu[part] = time.monotonic(), time.process_time()

    from resolvent.cli import prepare_process

    prepare_process()
    import jax

    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.comparisons.runs.runner import run_experiment

    spent = dict.fromkeys(_EVENTS.values(), 0.0)

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event in _EVENTS:
            spent[_EVENTS[event]] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)
    mark(_PARTS[0])
    file = ExperimentFile.load("digits")
    mark(_PARTS[1])
    build = ExperimentFile.build

    def build_and_note(self: ExperimentFile) -> Any:
        experiment = build(self)
        mark(_PARTS[2])
        return experiment

    ExperimentFile.build = build_and_note  # type: ignore[method-assign]

    def progress(label: str, done: int, total: int) -> None:
        mark(_PARTS[4 if done else 3])
        if done:
            parts = {part: b - a for part, a, b in zip(_PARTS, marks.values(), [*marks.values()][1:], strict=False)}
            of_cpu = {f"CPU of {part}": b - a for part, a, b in zip(_PARTS, cpu.values(), [*cpu.values()][1:],
                                                                    strict=False)}
            answer.write_text(json.dumps({"to the first rounds": marks[_PARTS[-1]] - marks["begin"],
                                          "CPU of it": time.process_time(), **of_cpu, **parts, **spent}))
            os._exit(0)

    run_experiment(file, progress=progress)


def imports() -> dict[str, Any]:
    """The seconds of all imports, and the fraction of each package."""
    program = "import resolvent.cli, resolvent.comparisons.runs.runner"
    report = subprocess.run([sys.executable, "-X", "importtime", "-c", program],
                           check=True, text=True, capture_output=True).stderr
    total: dict[str, int] = {}
    for microseconds, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", report):
        package = module.partition(".")[0]
        total[package] = total.get(package, 0) + int(microseconds)
    all_microseconds = sum(total.values())
    largest = sorted(total, key=lambda p: -total[p])[:8]
    return {"seconds": round(all_microseconds / 1e6, 2),
            "shares": {p: round(total[p] / all_microseconds, 3) for p in largest}}


if __name__ == "__main__":
    main()

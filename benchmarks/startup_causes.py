"""The CPU seconds of a whole process by cause, from samples of what its main thread does: see ``startup.py``.

    python benchmarks/startup_causes.py {digits,ResNet-20} [ANSWER.json]

Without ``ANSWER.json`` nothing is sampled.
"""

import atexit
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_SECONDS = 0.004  # between two samples
_CAUSES = {  # end of a file's name, and a function in it -> the cause; the innermost of the stack counts
    ("_bootstrap>", "_find_and_load"): "imports",
    ("compiler.py", "compile_or_get_cached"): "compiling or loading",
    ("pxla.py", "lower_sharding_computation"): "lowering",
    ("partial_eval.py", "trace_to_jaxpr"): "tracing",
    ("storage.py", "advance"): "rounds",
    ("measurements.py", "evaluate"): "evaluation",
    ("checkpoints.py", "write_if_due"): "checkpoints",
    ("verdict.py", "judge"): "decision",
    ("report.py", "write_report"): "pictures and report",
}


def main() -> None:
    """Do what is named, and write the seconds by cause if there is a path for them."""
    name, *answer = sys.argv[1:]
    if answer:
        _sample(Path(answer[0]))
    {"digits": _run_digits, "ResNet-20": _simulate_resnet}[name]()


def _run_digits() -> None:
    from resolvent.cli import main

    sys.argv = ["resolvent", "run", "digits"]
    main()


def _simulate_resnet() -> None:
    """Two rounds of FedAvg."""
    from resolvent.cli import prepare_process

    prepare_process()
    sys.path.insert(0, str(Path(__file__).with_name("models")))
    import ours

    import resolvent as rv

    rv.simulate(rv.fedavg(rv.SGD(0.05, batch_size=20)), ours.model_of("resnet"), ours.federated_data("resnet", 400),
                rounds=2, progress=False)


def _sample(answer: Path) -> None:
    """Sample the main thread until the process ends, and write the CPU seconds of each cause then."""
    seconds: Counter[str] = Counter()
    thread = threading.main_thread().ident
    assert thread is not None
    before = 0.0

    def loop() -> None:
        nonlocal before
        while True:
            time.sleep(_SECONDS)
            after = time.process_time()
            seconds[_cause(sys._current_frames().get(thread))] += after - before
            before = after

    atexit.register(lambda: answer.write_text(json.dumps(seconds)))
    threading.Thread(target=loop, daemon=True).start()


def _cause(frame: FrameType | None) -> str:
    while frame is not None:
        code = frame.f_code
        if code.co_name in _FUNCTIONS:
            for (file, function), cause in _CAUSES.items():
                if function == code.co_name and code.co_filename.endswith(file):
                    return cause
        frame = frame.f_back
    return "everything else"


_FUNCTIONS: frozenset[str] = frozenset(function for _, function in _CAUSES)

if __name__ == "__main__":
    main()

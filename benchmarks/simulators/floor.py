"""The machine's own limits: a hand-written C kernel for W1 and W2, one core's sgemm, and its memory bandwidth.

    python floor.py WORK OUT     the C kernel on a workload
    python floor.py OUT          the ceilings

OPENBLAS_NUM_THREADS=1 keeps NumPy's sgemm on one core.
"""

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peer import Meter, Work, arguments

FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")
_float, _int = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int32)


def library(features: int, classes: int, batch: int) -> ctypes.CDLL:
    """Compile floor.c for these sizes and load it."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("the floor needs a C compiler, and there is no cc on the PATH: install one, such as gcc")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "floor.so"
        sizes = (f"-DFEATURES={features}", f"-DCLASSES={classes}", f"-DBATCH={batch}")
        subprocess.run([compiler, *FLAGS, *sizes, str(Path(__file__).with_name("floor.c")), "-o", str(made), "-lm"],
                       check=True)
        loaded = ctypes.CDLL(str(made))
    loaded.triad.restype = ctypes.c_double
    return loaded


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros whose first byte is where a vector may begin."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip:skip + size].view(dtype).reshape(shape)


def kernel() -> None:
    """All rounds of W1 or W2."""
    meter = Meter()
    args = arguments()
    meter.mark("import")
    work = Work(args.work)
    facts = work.facts
    features, classes = work.first["weight"].shape[1], facts["classes"]
    made = library(features, classes, facts["batch"])
    width, floats = made.width(), made.floats()
    x = aligned((len(work.y), width))
    x[:, :features] = work.x.reshape(len(work.y), -1)
    y, offset, length, cohorts = (np.ascontiguousarray(a, np.int32) for a in (
        work.y, work.offset, work.length, work.cohorts))
    shared, scratch, order = aligned((floats,)), aligned((2 * floats,)), np.zeros(length.max(), np.int32)
    weight, bias = shared[:classes * width].reshape(classes, width), shared[classes * width:][:classes]
    weight[:, :features], bias[:] = work.first["weight"], work.first["bias"]
    meter.mark("data")
    for t, cohort in enumerate(cohorts):
        made.round_(
            shared.ctypes.data_as(_float), x.ctypes.data_as(_float), *(a.ctypes.data_as(_int) for a in (
                y, offset, length, cohort)), len(cohort), facts["epochs"], ctypes.c_float(facts["learning_rate"]),
            ctypes.c_float(facts["mu"]), ctypes.c_uint64(1000 * args.seed + t), scratch.ctypes.data_as(_float),
            order.ctypes.data_as(_int))
        meter.round_done(t + 1, len(cohorts))
    meter.write(args.out, {"weight": weight[:, :features], "bias": bias})


def ceilings(out: Path, repeats: int = 7) -> None:
    """The best of several: GFLOP/s of a product of 2048 x 2048 matrices, GB/s of a triad over 3 x 256 MiB."""
    n, m = 2048, 1 << 26
    a, b = (np.random.default_rng(i).normal(size=(n, n)).astype(np.float32) for i in (0, 1))
    product = np.empty_like(a)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        np.matmul(a, b, out=product)
        times.append(time.perf_counter() - start)
    made = library(64, 10, 10)
    arrays = [np.ones(m, np.float32) for _ in range(3)]
    passes = [made.triad(*(v.ctypes.data_as(_float) for v in arrays), ctypes.c_float(0.5), ctypes.c_size_t(m))
              for _ in range(repeats)]
    out.write_text(json.dumps({"sgemm_gflops": round(2e-9 * n**3 / min(times), 1),
                               "triad_gb_per_s": round(3e-9 * 4 * m / min(passes), 1)}))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        ceilings(Path(sys.argv[1]))
    else:
        kernel()

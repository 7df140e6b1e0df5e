"""How many rounds does Anderson acceleration save? Rounds to within 1e-8 of a method's own limit, with and without.

    python benchmarks/anderson.py [--out benchmarks/anderson.json]

Quadratics in float64: the operator-splitting paper's least squares (A.1, smaller), with equal shares and full
participation. Splitting takes exact proximal steps; Fed+ takes exact local solutions, or a few gradient steps. The
distance is relative. It is that of all personal models for Fed+, and of the shared model otherwise. The limit is the
result of many rounds without acceleration. A null says that the limit was not reached within the rounds allowed.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.simulator.engine.evaluate import personal_models
from resolvent.simulator.engine.rounds import initial_state, run_rounds

TOLERANCE, MAX_ROUNDS, LIMIT_ROUNDS, HISTORY_SIZES = 1e-8, 5000, 60_000, (3, 6, 11)
PARTICIPATION = rv.participation.Full("uniform")


def least_squares(parties: int, samples: int, dimension: int, spread: float = 0.7) -> rv.problems.QuadraticProblem:
    """b_k = A_k w_k + noise, where the w_k differ by ``spread``."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(parties, samples, dimension)) / np.sqrt(samples)
    minimisers = rng.normal(size=dimension) + spread * rng.normal(size=(parties, dimension))
    b = np.einsum("kni,ki->kn", a, minimisers) + 0.1 * rng.normal(size=(parties, samples))
    return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(b))


def main() -> None:
    """Count, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    out = parser.parse_args().out
    problems = {"9 samples, 4 features": least_squares(6, 9, 4), "12 samples, 20 features": least_squares(8, 12, 20)}
    exact, few = rv.solvers.ClosedForm(), rv.solvers.GD(0.2, steps=5)
    plus = {"fedavg_plus": rv.fedavg_plus, "fedgeomed_plus": rv.fedgeomed_plus, "fedcomed_plus": rv.fedcomed_plus}
    cases = {"fedavg, 2 steps": rv.fedavg(rv.solvers.GD(0.2, steps=2)), "fedprox": rv.splitting(exact),
             "fedrp": rv.fedrp(exact), "fedpi": rv.fedpi(exact), "fedsplit": rv.fedsplit(exact)}
    cases |= {f"{name}, {label}": make(solver, sigma=sigma, delta=0.5, **settings) for name, make in plus.items()
              for label, solver, sigma, settings in (
                  ("exact, sigma 1", exact, 1.0, {}), ("5 steps, sigma 1", few, 1.0, {}),
                  ("5 steps, sigma 0.1", few, 0.1, {}), ("5 steps, sigma 0.1, lam 0.5", few, 0.1, {"lam": 0.5}))}
    rows = []
    for title, problem in problems.items():
        for name, plain in cases.items():
            rows.append({"problem": title, "method": name} | count(plain, problem, name))
            print(*(f"{k}={v}" for k, v in rows[-1].items()), sep="  ", flush=True)
    if out:
        facts = {"tolerance": TOLERANCE, "most_rounds": MAX_ROUNDS, "rounds_to_the_limit": LIMIT_ROUNDS,
                 "jax": jax.__version__, "command": f"python benchmarks/anderson.py --out {out}"}
        out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def count(plain: Any, problem: rv.problems.QuadraticProblem, name: str) -> dict[str, int | None]:
    """Rounds of the method without acceleration, and with each history size."""
    target = models(plain, problem, LIMIT_ROUNDS, LIMIT_ROUNDS)[-1]
    rounds = {"plain": rounds_to(target, models(plain, problem, MAX_ROUNDS, 1))}
    settings = {"forward": 0.0} if name == "fedsplit" else {}
    accelerate = rv.combinators.DecentralisedAnderson if "plus" in name else rv.combinators.Anderson
    accelerated = {size: accelerate(plain, history_size=size, **settings) for size in HISTORY_SIZES}
    return rounds | {f"memory {size}": rounds_to(target, models(algorithm, problem, MAX_ROUNDS // 5, 1))
                     for size, algorithm in accelerated.items()}


def models(algorithm: Any, problem: rv.problems.QuadraticProblem, rounds: int, chunk: int) -> np.ndarray:
    """After each chunk of rounds, all personal models of Fed+, or the shared model of another method."""
    has_personal_models = "FedPlus" in repr(algorithm)
    state = initial_state(algorithm, problem, PARTICIPATION)
    history = []
    for t in range(0, rounds, chunk):
        state = run_rounds(algorithm, problem, PARTICIPATION, state=state, start=t, rounds=chunk)
        history.append(np.asarray(
            personal_models(algorithm, problem, state, jnp.arange(problem.parties)) if has_personal_models
            else algorithm.server_model(state.server)))
    return np.stack(history)


def rounds_to(target: np.ndarray, history: np.ndarray) -> int | None:
    """The number of rounds after which the distance stays below the tolerance."""
    far = [np.linalg.norm(x - target) > TOLERANCE * np.linalg.norm(target) for x in history]
    return None if far[-1] else len(far) - far[::-1].index(True)


if __name__ == "__main__":
    main()

"""How many rounds does Anderson acceleration save? Rounds to within 1e-8 of a method's own limit, with and without.

    python benchmarks/anderson.py [--out benchmarks/anderson.json]

Quadratics in float64: the operator-splitting paper's least squares (A.1, smaller), parties that weigh alike, all of
them in every round. Splitting takes exact proximal steps; Fed+ exact local solutions, or few gradient steps. The
distance is relative, over every party's own model for Fed+ and of the shared model otherwise; the limit is where many
plain rounds end. A null says that the limit was not reached in the rounds allowed.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.simulate.engine import initial, run_chunk
from resolvent.simulate.evaluate import deployed

TOLERANCE, MOST, MANY, MEMORIES = 1e-8, 5000, 60_000, (3, 6, 11)
WHO, SEED = rv.participation.Full("uniform"), jnp.array(0)


def least_squares(parties: int, samples: int, dimension: int, spread: float = 0.7) -> rv.problems.QuadraticProblem:
    """b_k = A_k w_k + noise, whose w_k differ by ``spread``; half a squared norm holds what the samples do not see."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(parties, samples, dimension)) / np.sqrt(samples)
    own = rng.normal(size=dimension) + spread * rng.normal(size=(parties, dimension))
    b = np.einsum("kni,ki->kn", a, own) + 0.1 * rng.normal(size=(parties, samples))
    return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(b))


def main() -> None:
    """Count and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    out = parser.parse_args().out
    problems = {"9 samples, 4 features": least_squares(6, 9, 4), "12 samples, 20 features": least_squares(8, 12, 20)}
    exact, few = rv.solvers.ClosedForm(), rv.solvers.GD(0.2, steps=5)
    plus = {"fedavg_plus": rv.fedavg_plus, "fedgeomed_plus": rv.fedgeomed_plus, "fedcomed_plus": rv.fedcomed_plus}
    cases = {"fedavg, 2 steps": rv.fedavg(rv.solvers.GD(0.2, steps=2)), "fedprox": rv.splitting(exact),
             "fedrp": rv.fedrp(exact), "fedpi": rv.fedpi(exact), "fedsplit": rv.fedsplit(exact)}
    cases |= {f"{name}, {how}": make(solver, sigma=sigma, delta=0.5, **more) for name, make in plus.items()
              for how, solver, sigma, more in (("exact, sigma 1", exact, 1.0, {}), ("5 steps, sigma 1", few, 1.0, {}),
                                               ("5 steps, sigma 0.1", few, 0.1, {}),
                                               ("5 steps, sigma 0.1, lam 0.5", few, 0.1, {"lam": 0.5}))}
    rows = []
    for where, problem in problems.items():
        for name, plain in cases.items():
            rows.append({"problem": where, "method": name} | count(plain, problem, name))
            print(*(f"{k}={v}" for k, v in rows[-1].items()), sep="  ", flush=True)
    if out:
        facts = {"tolerance": TOLERANCE, "most_rounds": MOST, "rounds_to_the_limit": MANY, "jax": jax.__version__,
                 "command": f"python benchmarks/anderson.py --out {out}"}
        out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def count(plain: Any, problem: rv.problems.QuadraticProblem, name: str) -> dict[str, int | None]:
    """Rounds of the plain method and of the accelerated one with each memory."""
    target = models(plain, problem, MANY, MANY)[-1]
    found = {"plain": rounds_to(target, models(plain, problem, MOST, 1))}
    settings = {"forward": 0.0} if name == "fedsplit" else {}
    accelerate = rv.combinators.DecentralisedAnderson if "plus" in name else rv.combinators.Anderson
    fast = {m: accelerate(plain, history_size=m, **settings) for m in MEMORIES}
    return found | {f"memory {m}": rounds_to(target, models(a, problem, MOST // 5, 1)) for m, a in fast.items()}


def models(algorithm: Any, problem: rv.problems.QuadraticProblem, rounds: int, chunk: int) -> np.ndarray:
    """What is measured after each chunk of rounds: every party's model where they are personal, else the shared one."""
    personal = "FedPlus" in repr(algorithm)
    state = initial(algorithm, problem, WHO, SEED)
    seen = []
    for t in range(0, rounds, chunk):
        state = run_chunk(algorithm, problem, WHO, state, SEED, jnp.array(t), jnp.array(chunk), capacity=1, record=(),
                          scheduler="sequential").state
        seen.append(np.asarray(deployed(algorithm, problem, state, jnp.arange(problem.parties)) if personal
                               else algorithm.server_model(state.server)))
    return np.stack(seen)


def rounds_to(target: np.ndarray, seen: np.ndarray) -> int | None:
    """After how many rounds the distance stays below the tolerance."""
    far = [np.linalg.norm(x - target) > TOLERANCE * np.linalg.norm(target) for x in seen]
    return None if far[-1] else len(far) - far[::-1].index(True)


if __name__ == "__main__":
    main()

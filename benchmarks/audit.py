"""Claimed epsilons and the lower bounds of an audit with canaries, for every private composition.

    python benchmarks/audit.py --out benchmarks/audit.json

The federation has one canary for each coordinate of the model (``resolvent.testing.canaries``). A lower bound holds
with 95 % confidence; it is far below epsilon, because it is from one run.
"""

import argparse
import json
import math
from pathlib import Path

import jax.numpy as jnp

import resolvent as rv
from resolvent.testing.canaries import audit_parties, audit_records, party_canaries, record_canaries

DELTA, ROUNDS = 1e-5, 2
RECORDS = {
    "local": rv.local,
    "fedavg": rv.fedavg,
    "fedprox": rv.fedprox,
    "feddyn": rv.feddyn,
    "fedpi": lambda s: rv.fedpi(s, eta=0.5),
    "protected_fedplus": rv.protected_fedplus,
    "robust_interpolation": rv.robust_interpolation,
    "ditto": rv.ditto,
    "model_interpolation of fedprox": lambda s: rv.model_interpolation(s, rv.fedprox(s, mu=0.5)),
    "fedplus_auto, 2 candidates": lambda s: rv.fedplus_auto(s, sigmas=(0.1, 1.0), deltas=(1.0,)),
    "pfedme, 2 steps": lambda s: rv.pfedme(s, steps=2, eta=0.03),
}
PARTIES = {"noise of the server": {}, "noise of the parties": {"noise": "parties"}, "quantile": {"quantile": 0.5}}


def measure(count: int) -> list[dict[str, float | str]]:
    solver = rv.solvers.DPSGD(0.1, clip=1.0, noise_multiplier=1.5, batch_size=count, steps=2)
    sampled = rv.solvers.DPSGD(0.1, clip=1.0, noise_multiplier=1.5, batch_size=count // 4, steps=2)
    cases = {name: make(solver) for name, make in RECORDS.items()}
    cases["fedavg, batches of a quarter"] = rv.fedavg(sampled)
    rows, canaries = [], record_canaries(count)
    for name, algorithm in cases.items():
        claim, = rv.privacy.record_epsilons(algorithm, jnp.zeros(count), [count], rounds=ROUNDS, delta=DELTA)
        audit = audit_records(algorithm, rounds=ROUNDS, delta=DELTA, canaries=canaries)
        rows.append(row("records", name, claim, audit))
    parties = party_canaries(count)
    for name, settings in PARTIES.items():
        algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.solvers.GD(1.0, steps=1)), cohort=count,
                                                  noise_multiplier=1.0, **settings)
        claim = rv.privacy.party_epsilon(algorithm, rate=1.0, rounds=ROUNDS, delta=DELTA)
        rows.append(row("parties", name, claim, audit_parties(algorithm, rounds=ROUNDS, delta=DELTA, canaries=parties)))
    return rows


def row(unit: str, name: str, claim: float, audit: rv.privacy.Audit) -> dict[str, float | str]:
    assert math.isfinite(claim)
    print(f"| {unit} | {name} | {claim:.2f} | {audit.lower_bound:.2f} |", flush=True)
    return {"unit": unit, "composition": name, "claim": claim, "lower_bound": audit.lower_bound,
            "guesses": audit.guesses, "correct": audit.correct}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--canaries", type=int, default=400)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print("| protects | composition | claimed epsilon | lower bound |\n|---|---|---|---|")
    table = measure(arguments.canaries)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"canaries": arguments.canaries, "delta": DELTA, "rounds": ROUNDS,
                                             "rows": table}, indent=1) + "\n")

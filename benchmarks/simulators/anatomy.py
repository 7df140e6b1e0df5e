"""The time of the parts of a round on one workload and one core, by loops that each do one thing more."""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small

import jax
import jax.numpy as jnp
import numpy as np
from peer import Work
from report import flops
from workloads import WORKLOADS, algorithm_of, cache, data_of, model_of, participation_of, prepare, solver_of

import resolvent as rv
from resolvent.math import tree
from resolvent.problem.solvers.minibatches import MinibatchBudget, over_minibatches
from resolvent.problem.subproblem import Subproblem
from xla_cpu_rewrites.small_call import allow_small_calls

__all__ = ["anatomy"]

_ROUNDS = 10  # whose local work is measured part by part
_REPEATS = 5


def anatomy(name: str) -> None:
    """Print the table of one workload.

    Every loop makes all steps of all parties of the last rounds: one draws the order of the samples, one also gathers
    them, one also computes the gradient, one is the solver. The difference between a loop and the next is the time of a
    part. XLA fuses operations of different parts, so it is the time that would be saved without the part. The rest of a
    round is the engine's: cohort, keys, party states, the server and the record.
    """
    rounds = min(_ROUNDS, WORKLOADS[name].half)
    work = Work(prepare(name, cache(), half=-(-3 * rounds // 2)))
    facts = work.facts
    data = data_of(work)
    model = model_of(facts)
    algorithm, participation = algorithm_of(facts), participation_of(work)

    def run() -> rv.Result:
        return rv.simulate(algorithm, model, data, rounds=3 * rounds, seed=0, evaluate_every=rounds,
                           participation=participation, progress=False)

    begin = time.perf_counter()
    result = run()
    total = time.perf_counter() - begin
    round_seconds = min(run().facts["cpu_per_round"][2] for _ in range(_REPEATS))
    # Only the cohorts of the timed rounds, because the work of cohorts differs.
    cohorts = work.cohorts[2 * rounds:3 * rounds]
    pieces = local_work(rv.problems.LearningProblem(model, data), solver_of(facts), facts, cohorts)
    steps = facts["epochs"] * float(np.ceil(work.length[cohorts] / facts["batch"]).sum()) / rounds
    print(f"{name}: {facts['title']}; {steps:.0f} steps a round; one core, JAX {jax.__version__}\n")
    print(f"{'a round':44}{'CPU ms':>9}{'share':>8}{'us a step':>11}")
    before = 0.0
    for label, seconds in (*pieces.items(), ("the engine and the server", round_seconds)):
        part = seconds - before
        print(f"  {label:42}{1e3 * part:9.2f}{part / round_seconds:8.0%}{1e6 * part / steps:11.2f}")
        before = seconds
    print(f"  {'whole':42}{1e3 * round_seconds:9.2f}{1:8.0%}{1e6 * round_seconds / steps:11.2f}")
    print(f"\n{1e-9 * flops(facts) / round_seconds:.1f} GFLOP/s over the round, counting the matrix products alone, at "
          "the mean size of the parties")
    spent = result.facts["seconds"]
    print(f"\na run of {3 * rounds} rounds, {total:.2f} s: compiling {spent['compile']:.2f}, rounds "
          f"{spent['rounds']:.2f}, four evaluations of the training samples {spent['evaluation']:.2f}, the rest "
          f"{total - sum(spent.values()):.2f}")


def local_work(problem: rv.problems.LearningProblem, solver: rv.SGD, facts: dict[str, Any],
               cohorts: np.ndarray) -> dict[str, float]:
    """CPU seconds per round up to and including each part."""
    w0, full_effort = problem.init(jax.random.key(0)), jnp.ones(())

    def party(step: Callable[[Any, Any], Callable[..., Any]], state: Any) -> Callable[[Any, Any, Any], Any]:
        def of_party(problem: rv.problems.LearningProblem, k: Any, key: Any) -> Any:
            oracle = problem.oracle(k)
            return over_minibatches(step(problem, oracle), state, oracle.samples, key, full_effort,
                                    MinibatchBudget(facts["batch"], facts["epochs"], None), solver.batches)[0]
        return of_party

    def order(problem: Any, oracle: Any) -> Callable[..., Any]:
        return lambda total, at, mask: total + jnp.sum(at)

    def gathered(problem: Any, oracle: Any) -> Callable[..., Any]:
        return lambda total, at, mask: total + jnp.sum(problem.x[oracle.offset + at]).astype(total.dtype)

    def gradient(problem: Any, oracle: Any) -> Callable[..., Any]:
        return lambda w, at, mask: oracle.batch_grad(tree.axpy(1e-30, w, w0), at, mask)[0]

    def solved(problem: Any, k: Any, key: Any) -> Any:
        return solver(Subproblem(problem.oracle(k), w0, facts["mu"]), w0, key, full_effort)[0]

    loops = {"the order of the samples": party(order, jnp.zeros((), jnp.int32)),
             "gathering them": party(gathered, jnp.zeros(())),
             "the gradient": party(gradient, w0), "the update": solved}
    return {label: timed(loop, problem, cohorts) for label, loop in loops.items()}


def timed(of_party: Callable[[Any, Any, Any], Any], problem: rv.problems.LearningProblem, cohorts: np.ndarray) -> float:
    """CPU seconds per round of a party function over all cohorts, party after party: the minimum of several."""
    @jax.jit
    def run(problem: rv.problems.LearningProblem, parties: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            with allow_small_calls():  # as the engine does
                leaves = jax.tree.leaves(of_party(problem, parties[i], jax.random.fold_in(jax.random.key(1), i)))
            return total + sum(jnp.sum(leaf) for leaf in leaves)
        return jax.lax.fori_loop(0, len(parties), body, jnp.zeros(()))

    parties, seconds = jnp.asarray(cohorts.ravel()), []
    for _ in range(_REPEATS + 1):
        start = time.process_time()
        run(problem, parties).block_until_ready()
        seconds.append(time.process_time() - start)
    return min(seconds[1:]) / len(cohorts)

"""Mistakes in the core that a commit must find: each is one changed line, with the test that fails because of it.

``python tests/mutants.py [NAME ...]`` applies each mistake to a copy of ``src`` and runs its test, with the tests'
options of a commit. ``mutants.json`` has the result; ``--write`` writes it again. ``test_mutants.py`` checks that every
mistake still fits the code, which takes no time, so that a change of a line moves its mistake too.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
RESULTS = TESTS / "mutants.json"


@dataclass(frozen=True)
class Mutant:
    """A text that stands once in a file of the library, what it becomes, and the test that finds it."""

    file: str
    text: str
    mistake: str
    test: str

    def apply(self, source):
        """Change the file in a copy of the sources."""
        path = source / "resolvent" / self.file
        before = path.read_text()
        if before.count(self.text) != 1:
            raise ValueError(f"{self.file} has {before.count(self.text)} times {self.text!r}, expected 1: change the "
                             "mutant with the code")
        path.write_text(before.replace(self.text, self.mistake))


MUTANTS = {
    "weights of an aggregator": Mutant(
        "math/centres.py", "return _weighted_sum(_normalised(weights), points)",
        "return _weighted_sum(_normalised(jnp.ones_like(weights)), points)",
        "testing/test_parts.py::test_aggregators"),
    "shares": Mutant(
        "algorithms/participation/rules.py", 'if weighting == "size":', 'if weighting != "size":',
        "algorithms/test_participation.py::test_weights_are_the_shares"),
    "sign of the proximal term": Mutant(
        "problem/solvers/solver.py", "kappa * (w - rate * g) + (1 - kappa) * c",
        "kappa * (w - rate * g) - (1 - kappa) * c",
        "problem/test_solvers.py::test_sgd_is_its_numpy_twin"),
    "key of a party": Mutant(
        "algorithms/keys.py", "return jax.random.fold_in(phase, k)", "return jax.random.fold_in(phase, 0)",
        "algorithms/test_privacy.py::test_the_noise_of_private_parties_has_the_stated_standard_deviation"),
    "mask of replies": Mutant(
        "algorithms/round.py", "weight=jnp.where(counted, cohort.weight, 0)", "weight=cohort.weight",
        "algorithms/test_admission.py::test_rows_are_in_the_cohorts_order_and_zero_for_absent_parties"),
    "rounding of effort": Mutant(
        "problem/solvers/minibatches.py", "jnp.ceil(work - 1e-4)", "jnp.floor(work - 1e-4)",
        "problem/test_solvers.py::test_partial_work_is_the_next_whole_epoch"),
    "sign of the personal component": Mutant(
        "algorithms/methods/fedplus.py", "tree.axpy(1, self.penalty.prox(", "tree.axpy(-1, self.penalty.prox(",
        "algorithms/test_fedplus_theory.py::test_theorem_2"),
    "reflection of splitting": Mutant(
        "algorithms/methods/splitting.py", "tree.lerp(u, tree.lerp(z, mean, beta), gamma)",
        "tree.lerp(u, tree.lerp(mean, z, beta), gamma)",
        "algorithms/test_corrections.py::test_admm_by_numpy_with_dual_variables"),
    "sign of Scaffold's control variates": Mutant(
        "algorithms/methods/corrections.py", "Subproblem(oracle, shared, 0.0, tree.sub(c, c_k))",
        "Subproblem(oracle, shared, 0.0, tree.sub(c_k, c))",
        "algorithms/test_baselines.py::test_scaffold_converges_to_the_optimum_and_fedavg_does_not"),
    "step of DIANA's shifts": Mutant(
        "algorithms/combinators/compressed.py",
        "step = self.codec.step(size) if self.step is None else self.step\n        return tuple(",
        "step = self.codec.step(size) if self.step is None else 1\n        return tuple(",
        "algorithms/test_mixing.py::test_diana_by_numpy"),
    "weights of Anderson acceleration": Mutant(
        "math/anderson.py", "ones = jnp.where(filled, 1 / size, 0)", "ones = jnp.where(filled, size, 0)",
        "algorithms/test_splitting.py::test_mixing_weights_against_a_constrained_least_squares"),
    "stop of the Moreau centre": Mutant(
        "math/centres.py", "target = jnp.maximum(tolerance, 8 * eps)", "target = jnp.maximum(1e3 * tolerance, 8 * eps)",
        "math/test_moreau_centre.py::test_residual_reaches_the_tolerance_asked_for"),
    "decay of momentum": Mutant(
        "algorithms/combinators/momentum.py", "tree.lerp(tree.sub(reply, origin), state.extra.average, decay)",
        "tree.lerp(tree.sub(reply, origin), state.extra.average, 1 - decay)",
        "algorithms/test_mixing_defences.py::test_momentum_by_numpy"),
    "sign of the pseudo-gradient": Mutant(
        "algorithms/combinators/server_steps.py", "tree.sub(point, self._iterate.read(after))",
        "tree.sub(self._iterate.read(after), point)",
        "algorithms/test_server_optimizers.py::test_server_optimizers_step_along_fedavgs_pseudo_gradient"),
    "draw of a cohort": Mutant(
        "algorithms/participation/rules.py", "ends[-1], jnp.int32)\n", "len(sizes), jnp.int32)\n",
        "algorithms/test_participation.py::test_by_size_draws_with_replacement_in_proportion_to_size"),
    "order of minibatches": Mutant(
        "problem/solvers/minibatches.py", "shuffle: Shuffle = tree.rows(shuffles, epoch - epoch[0])",
        "shuffle: Shuffle = tree.rows(shuffles, 0 * epoch)",
        "problem/test_solvers.py::test_sgd_is_its_numpy_twin"),
    "weights of a metric": Mutant(
        "predict/evaluation.py", "mean + weights / weights.mean() * (values - mean)", "mean + (values - mean)",
        "problem/test_fitted.py::test_class_weights_count_in_the_loss_alone"),
    "classes of a partition": Mutant(
        "data/partition/partitions.py", "if (number - u) % len(classes) < self.classes]",
        "if (number + u) % len(classes) < self.classes]",
        "data/test_partitions.py::test_power_law_parties_have_neighbouring_classes_and_the_minimum_of_each"),
    "order of a scheduler's results": Mutant(
        "simulator/engine/schedulers.py", "return tree.rows(results, slot_of)\n",
        "return tree.rows(results, jnp.arange(size))\n",
        "simulator/test_schedulers.py::test_every_scheduler_hands_on_the_round_in_which_a_party_began"),
    "rows of parties' states": Mutant(
        "simulator/engine/compiled_rounds.py", "leaf.at[home.targets(slots, len(leaf))].set(row, unique_indices=True)",
        "leaf.at[home.targets(slots, len(leaf))].add(row, unique_indices=True)",
        "algorithms/test_contract.py::test_contract[ca2fl-check_python_loop]"),
}


def find(mutant):
    """The id of the test that fails with the mistake, or None if the mistake is missed."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.apply(source)
        environment = {name: value for name, value in os.environ.items() if name != "RESOLVENT_NIGHTLY"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "-p", "no:cacheprovider",
                   str(TESTS / mutant.test)]
        process = subprocess.run(command, env=environment | {"PYTHONPATH": str(source)}, cwd=TESTS.parent,
                                 capture_output=True, text=True, timeout=900)
    failed = re.search(r"^FAILED (\S+::.*?)(?: - .*)?$", process.stdout, re.MULTILINE)
    if failed is None and process.returncode != 0:
        raise RuntimeError(f"{mutant.test} did not run:\n{process.stdout[-3000:]}{process.stderr[-3000:]}")
    return failed[1].removeprefix("tests/") if failed else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of mistakes; default: all")
    parser.add_argument("--write", action="store_true", help="write the results into mutants.json")
    arguments = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    missed = []
    for name in arguments.names or MUTANTS:
        known[name] = find(MUTANTS[name])
        print(f"{name}: {known[name] or 'MISSED'}", flush=True)
        missed += [name] * (known[name] is None)
        if arguments.write:
            RESULTS.write_text(json.dumps({name: known.get(name) for name in MUTANTS}, indent=1) + "\n")
    return len(missed) > 0


if __name__ == "__main__":
    sys.exit(main())

"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "algorithms/test_contract.py", "comparisons/test_regress.py", "comparisons/test_folds.py",
    "algorithms/test_local_objectives.py", "docs/test_doctests.py", "comparisons/test_kill_and_resume.py",
    "federation/test_continuation.py", "comparisons/test_refit.py",
    "comparisons/test_calibrate_and_explain.py", "simulator/test_simulate.py", "algorithms/test_memory.py",
    "algorithms/test_splitting.py", "algorithms/test_attacks.py",
    "algorithms/test_private_parties.py", "simulator/test_cohorts.py", "algorithms/test_availability.py",
    "federation/test_federation_cli.py", "algorithms/test_robust.py", "comparisons/test_run_folder.py",
    "algorithms/test_corrections.py", "comparisons/test_tuning.py",
    "comparisons/test_report.py", "simulator/test_schedulers.py", "simulator/test_host_storage.py",
    "problem/test_optax_solver.py", "testing/test_parts.py",
    "problem/test_solvers.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "algorithms/test_contract.py", "comparisons/test_kill_and_resume.py", "docs/test_doctests.py",
    "federation/test_continuation.py", "algorithms/test_robust.py", "algorithms/test_participation.py",
    "comparisons/test_tuning.py", "comparisons/test_folds.py", "simulator/test_schedulers.py",
    "simulator/test_host_storage.py", "comparisons/test_report.py", "comparisons/test_report_in_browser.py",
    "problem/test_optax_solver.py", "simulator/test_simulate.py", "problem/test_solvers.py", "testing/test_parts.py",
    "simulator/test_cohorts.py", "algorithms/test_splitting.py", "algorithms/test_attacks.py",
    "federation/test_federation_cli.py", "algorithms/test_private_parties.py", "algorithms/test_audit.py",
    "simulator/test_cache.py", "papers/test_portfolio_reproduction.py", "docs/test_recipes.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "federation/test_federated_regression.py", "comparisons/test_regress.py", "algorithms/test_contract.py",
    "comparisons/test_regress_inputs.py", "comparisons/test_calibrate_and_explain.py", "comparisons/test_report.py",
    "testing/test_parts.py", "comparisons/test_study.py", "federation/test_known_attacks.py",
    "federation/test_private_federation.py", "federation/test_journal.py", "comparisons/test_folds.py",
    "xla_cpu_rewrites/test_rewrites.py", "docs/test_doctests.py", "federation/secure/test_server_view.py",
    "comparisons/test_refit.py", "algorithms/test_participation.py", "comparisons/test_tuning.py",
    "algorithms/test_local_objectives.py", "algorithms/test_robust.py", "math/test_moreau_centre.py",
    "federation/secure/test_secure_federation.py", "simulator/test_simulate.py", "comparisons/test_seeds.py",
    "federation/test_federation_cli.py", "simulator/test_cohorts.py", "comparisons/test_kill_and_resume.py",
    "federation/test_site_rights.py", "problem/test_solvers.py", "federation/test_faults.py",
    "algorithms/test_privacy_budget.py", "simulator/test_asynchronous.py", "federation/test_refusals.py",
    "algorithms/test_attacks.py", "simulator/test_host_storage.py", "algorithms/test_privacy.py",
    "problem/test_fitted.py", "comparisons/test_advice.py", "algorithms/test_model_state.py",
    "federation/test_federation_sites.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

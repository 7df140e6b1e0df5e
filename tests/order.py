"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "comparisons/test_regress_inputs.py", "comparisons/test_regress.py", "problem/test_ridge_path.py",
    "algorithms/test_contract.py", "federation/test_federated_regression.py", "comparisons/test_report.py",
    "comparisons/test_calibrate_and_explain.py", "comparisons/test_study.py", "comparisons/test_kill_and_resume.py",
    "comparisons/test_advice.py", "algorithms/test_local_objectives.py", "comparisons/test_folds.py",
    "comparisons/test_command_line.py", "xla_cpu_rewrites/test_rewrites.py", "algorithms/test_participation.py",
    "docs/test_doctests.py", "testing/test_parts.py", "federation/test_known_attacks.py", "algorithms/test_privacy.py",
    "problem/test_solvers.py", "simulator/test_start_and_schedules.py", "algorithms/test_model_state.py",
    "comparisons/test_refit.py", "math/test_centre_searches.py", "comparisons/test_tuning.py",
    "algorithms/test_privacy_budget.py", "federation/secure/test_server_view.py", "math/test_moreau_centre.py",
    "simulator/test_checkpoints.py", "federation/test_private_federation.py",
    "federation/secure/test_secure_federation.py", "simulator/test_simulate.py", "algorithms/test_robust.py",
    "federation/test_site_rights.py", "simulator/test_asynchronous.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

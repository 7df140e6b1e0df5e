"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "federation/test_federated_regression.py", "comparisons/test_regress_inputs.py", "algorithms/test_contract.py",
    "comparisons/test_advice.py", "comparisons/test_calibrate_and_explain.py", "comparisons/test_report.py",
    "comparisons/test_regress.py", "xla_cpu_rewrites/test_rewrites.py", "testing/test_parts.py",
    "comparisons/test_study.py", "comparisons/test_kill_and_resume.py", "problem/test_ridge_path.py",
    "federation/test_known_attacks.py", "federation/test_private_federation.py", "federation/test_journal.py",
    "comparisons/test_folds.py", "docs/test_doctests.py", "algorithms/test_local_objectives.py",
    "algorithms/test_participation.py", "algorithms/test_robust.py", "algorithms/test_privacy_budget.py",
    "federation/secure/test_server_view.py", "comparisons/test_tuning.py", "math/test_moreau_centre.py",
    "simulator/test_checkpoints.py", "comparisons/test_refit.py", "simulator/test_simulate.py",
    "algorithms/test_model_state.py", "algorithms/test_privacy.py", "algorithms/test_admission.py",
    "algorithms/test_availability.py", "federation/secure/test_secure_federation.py", "problem/test_solvers.py",
    "docs/test_site.py", "comparisons/test_seeds.py", "algorithms/test_personal_splitting.py", "problem/test_models.py",
    "federation/test_federation_cli.py", "simulator/test_cohorts.py", "math/test_centre_searches.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

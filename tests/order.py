"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "algorithms/test_contract.py", "comparisons/test_refit.py", "comparisons/test_folds.py",
    "comparisons/test_calibrate_and_explain.py", "algorithms/test_local_objectives.py", "comparisons/test_regress.py",
    "math/test_codecs.py", "federation/test_federated_regression.py", "problem/test_models.py",
    "federation/secure/test_secure_federation.py", "testing/test_parts.py", "xla_cpu_rewrites/test_rewrites.py",
    "problem/test_structured_losses.py", "simulator/test_checkpoints.py", "math/test_penalties.py",
    "federation/test_continuation.py", "federation/secure/test_server_view.py", "federation/test_federation_cli.py",
    "federation/test_known_attacks.py", "docs/test_doctests.py", "comparisons/test_run_folder.py",
    "simulator/test_simulate.py", "simulator/test_identity.py", "federation/test_faults.py",
    "comparisons/test_tuning.py", "simulator/test_host_storage.py", "math/test_moreau_centre.py",
    "algorithms/test_robust.py", "algorithms/test_corrections.py", "problem/test_solvers.py",
    "algorithms/test_personal_splitting.py", "federation/test_site_rights.py", "simulator/test_schedulers.py",
    "comparisons/test_hostile_input.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

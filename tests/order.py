"""The order of the test files: the longest first, so that at the end no worker waits for the other's long file."""

from pathlib import Path

TESTS = Path(__file__).parent
# Measured in CPU seconds with nothing compiled, the longest first.
LONGEST = (
    "algorithms/test_contract.py", "federation/test_continuation.py", "xla_cpu_rewrites/test_rewrites.py",
    "simulator/test_identity.py", "federation/test_federated_regression.py", "comparisons/test_folds.py",
    "comparisons/test_regress.py", "algorithms/test_local_objectives.py",
    "federation/secure/test_secure_federation.py", "federation/test_ledger.py", "math/test_codecs.py",
    "comparisons/test_run_folder.py", "xla_cpu_rewrites/test_kernels.py", "problem/test_structured_losses.py",
    "problem/test_models.py", "math/test_moreau_centre.py", "federation/test_site_rights.py",
    "comparisons/test_tuning.py", "federation/test_federation_cli.py", "federation/test_refusals.py",
    "comparisons/test_study.py", "simulator/test_asynchronous.py", "comparisons/test_calibrate_and_explain.py",
    "algorithms/test_robust.py", "federation/secure/test_noise_of_parties.py", "math/test_centre_searches.py",
    "federation/secure/test_server_view.py", "comparisons/test_refit.py", "federation/test_faults.py",
    "docs/test_doctests.py", "federation/test_private_federation.py", "simulator/test_simulate.py",
    "federation/test_known_attacks.py", "algorithms/test_private_parties.py", "xla/test_shuffle.py",
    "math/test_penalties.py", "testing/test_parts.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def longest_first(items):
    """The tests of the longest files, then all others in their order; the tests of a file stay together."""
    return sorted(items, key=lambda item: _RANKS.get(item.path, len(_RANKS)))

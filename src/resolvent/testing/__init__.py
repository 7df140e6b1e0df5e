"""The contracts that the parts of the library pass, for authors of new ones.

``check_algorithm(make)`` checks an algorithm; ``check_aggregator``, ``check_codec``, ``check_participation``,
``check_penalty`` and ``check_solver`` check one part of it. ``torture`` stops and damages runs of own
parts, which must continue to the same result.

``make(solver)`` builds the algorithm with a local solver. A clause that does not hold raises an ``AssertionError`` that
says what was expected and what to do. Each clause is also a function of its own, so that a test runner can report the
clauses one by one:

.. code-block:: python

    import pytest
    from resolvent.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(my_algorithm)
"""

from resolvent.testing.aggregators import check_aggregator
from resolvent.testing.codecs import check_codec
from resolvent.testing.contract import (
    CHECKS,
    check_algorithm,
    check_compiles_once,
    check_declarations,
    check_dtypes,
    check_empty_round,
    check_half_precision,
    check_models,
    check_noise_keys,
    check_python_loop,
    check_repeatable,
    check_rounds_continue,
    check_single_sample,
    check_sweep,
    check_weights,
)
from resolvent.testing.example import (
    Make,
    assert_close,
    example_participation,
    example_problem,
    example_solver,
    without_parties,
)
from resolvent.testing.faults import torture
from resolvent.testing.participations import check_participation
from resolvent.testing.penalties import check_penalty
from resolvent.testing.python_loop import python_rounds
from resolvent.testing.solvers import check_solver

__all__ = [
    "CHECKS", "Make", "assert_close", "check_aggregator", "check_algorithm", "check_codec", "check_compiles_once",
    "check_declarations", "check_dtypes", "check_empty_round", "check_half_precision", "check_models",
    "check_noise_keys", "check_participation", "check_penalty", "check_python_loop", "check_repeatable",
    "check_rounds_continue", "check_single_sample", "check_solver", "check_sweep", "check_weights",
    "example_participation", "example_problem", "example_solver", "python_rounds", "torture", "without_parties",
]


def __dir__() -> list[str]:
    return __all__

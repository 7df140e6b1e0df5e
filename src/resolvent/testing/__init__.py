"""The contracts that every algorithm and every participation passes, for authors of new ones.

``check_participation(participation)`` checks a rule that draws cohorts, ``check_algorithm(make)`` an algorithm.

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

from resolvent.testing.contract import (
    CHECKS,
    check_algorithm,
    check_compiles_once,
    check_declarations,
    check_dtypes,
    check_empty_round,
    check_half_precision,
    check_models,
    check_python_loop,
    check_repeatable,
    check_rounds_continue,
    check_single_sample,
    check_sweep,
)
from resolvent.testing.example import (
    Make,
    assert_close,
    example_participation,
    example_problem,
    example_solver,
    without_parties,
)
from resolvent.testing.participations import check_participation
from resolvent.testing.python_loop import python_rounds

__all__ = [
    "CHECKS", "Make", "assert_close", "check_algorithm", "check_compiles_once", "check_declarations", "check_dtypes",
    "check_empty_round", "check_half_precision", "check_models", "check_participation", "check_python_loop",
    "check_repeatable", "check_rounds_continue", "check_single_sample", "check_sweep", "example_participation",
    "example_problem", "example_solver", "python_rounds", "without_parties",
]

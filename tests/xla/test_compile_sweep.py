"""The small, fixed part of the sweep over programs: all compile in both forms, with the same results."""

import os

import pytest
from compile_sweep import FIXED, WRONG, outcomes

from xla_cpu_rewrites.versions import supports_call_metadata

CASES = FIXED if "RESOLVENT_NIGHTLY" in os.environ else FIXED[1::12]


@pytest.mark.when_changed
@pytest.mark.slow
@pytest.mark.skipif(not supports_call_metadata(), reason="all programs are plain")
def test_both_forms_of_the_fixed_programs_agree():
    results = list(outcomes(CASES))
    assert len(results) == len(CASES)
    assert [result for result in results if result["outcome"] in WRONG] == []
    # Otherwise the sweep compares nothing.
    assert sum(result["outcome"] == "agrees" for result in results) >= len(CASES) // 3


@pytest.mark.nightly
def test_a_process_that_dies_is_an_outcome():
    """A seed that is no number ends the process of the first case; the second case has a new process."""
    results = list(outcomes([{"grid": "operations", "seed": "none"}, {"grid": "operations", "seed": 0}]))
    assert [result["outcome"] for result in results] == ["died", "same"]

"""Which of many similar cases of a test run at every commit."""

import pytest


def parametrize(names, cases, *, per_commit=1, **options):
    """``pytest.mark.parametrize``: a commit runs the first cases, the nightly run all of them."""
    has_several_names = not isinstance(names, str)

    def at_night(case):
        return pytest.param(*(case if has_several_names else [case]), marks=pytest.mark.nightly)

    parameters = [case if i < per_commit else at_night(case) for i, case in enumerate(cases)]
    return pytest.mark.parametrize(names, parameters, **options)

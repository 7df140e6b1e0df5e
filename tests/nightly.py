"""Which of many similar cases of a test run at every commit, and which examples of a property.

The tests of a commit take minutes on two cores, so a commit runs one case of each kind. The nightly run has all cases.
A test runs at night only if it takes more than about half a second of CPU time and a quicker test of the commit fails
for most of the same mistakes: a limit of a method whose single steps are tested, or a property that the contract tests
for every algorithm. A whole run, refit or federation that takes more than about 1.5 seconds has the mark
``when_changed``: it runs if something that it needs differs from the commit ``RESOLVENT_BASE``, and at night. A test
that alone finds a mistake of ``mutants.py`` runs at every commit.
"""

import os

import pytest

IS_NIGHT = "RESOLVENT_NIGHTLY" in os.environ
WHEN_CHANGED = pytest.mark.when_changed


def parametrize(names, cases, *, per_commit=1, others=pytest.mark.nightly, **options):
    """``pytest.mark.parametrize``: a commit runs the first cases, the nightly run all of them.

    With ``others=nightly.WHEN_CHANGED`` the others run also if something that they need has changed.
    """
    has_several_names = not isinstance(names, str)

    def later(case):
        return pytest.param(*(case if has_several_names else [case]), marks=others)

    parameters = [case if i < per_commit else later(case) for i, case in enumerate(cases)]
    return pytest.mark.parametrize(names, parameters, **options)


def diagonal(names, first, second, **options):
    """``pytest.mark.parametrize`` over all pairs: a commit runs every value of both at least once, the night all pairs.

    The names are two, and the values of each are a list.
    """
    first, second = [*first], [*second]
    in_commit = {(k % len(first), k % len(second)) for k in range(max(len(first), len(second)))}
    parameters = [pytest.param(a, b, marks=() if (i, j) in in_commit else pytest.mark.nightly)
                  for i, a in enumerate(first) for j, b in enumerate(second)]
    return pytest.mark.parametrize(names, parameters, **options)


def examples(count):
    """Number of examples of a property: a third of them at a commit, where hypothesis draws the same each time."""
    return count if IS_NIGHT else -(-count // 3)

"""The mistakes of ``mutants.py`` fit the code, and tests that a commit runs have found them."""

import json

import pytest

from mutants import MUTANTS, RESULTS, SOURCE, TESTS


@pytest.mark.parametrize("part", ["text", "test"])
def test_every_mistake_fits_the_code(part):
    """Its line stands once in its file, and its test is there."""
    def fits(mutant):
        if part == "text":
            return (SOURCE / "resolvent" / mutant.file).read_text().count(mutant.text) == 1
        file, _, test = mutant.test.partition("::")
        return f"def {test.partition('[')[0]}(" in (TESTS / file).read_text() if test else (TESTS / file).is_file()

    assert [name for name, mutant in MUTANTS.items() if not fits(mutant)] == []


def test_every_mistake_was_found():
    """``python tests/mutants.py --write`` finds them again."""
    found = json.loads(RESULTS.read_text())
    assert list(found) == list(MUTANTS)
    assert [name for name, mutant in MUTANTS.items() if not (found[name] or "").startswith(mutant.test)] == []

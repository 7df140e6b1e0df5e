"""Which cases of a test a commit runs."""

from itertools import product

import nightly


def test_a_diagonal_has_all_pairs_and_a_commit_every_value():
    parameters = nightly.diagonal(("name", "number"), "abc", [1, 2]).args[1]
    assert [parameter.values for parameter in parameters] == [*product("abc", [1, 2])]
    in_commit = [parameter.values for parameter in parameters if not parameter.marks]
    assert [{*values} for values in zip(*in_commit, strict=True)] == [{*"abc"}, {1, 2}]
    assert len(in_commit) == 3

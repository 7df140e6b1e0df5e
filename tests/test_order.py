"""The longest files of tests start first, and exist."""

from types import SimpleNamespace

from order import LONGEST, TESTS, longest_first


def test_the_longest_files_come_first_and_the_others_keep_their_order():
    names = ["data/test_b.py", LONGEST[1], "data/test_a.py", LONGEST[0], LONGEST[1]]
    items = [SimpleNamespace(path=TESTS / name, number=number) for number, name in enumerate(names)]
    assert [item.number for item in longest_first(items)] == [3, 1, 4, 0, 2]


def test_the_longest_files_exist():
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []

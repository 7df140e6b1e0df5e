"""A campaign of faults: kills, damaged files, hostile input and missing resources.

Run it with ``make torture``, or with ``python tests/torture --kills 100 --tables 5000 --seed 0``. It is part of the
tests, not of the benchmarks: its answer is yes or no, and it shares the tests' hostile input.
"""

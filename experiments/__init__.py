"""The papers' figures as experiments, with the papers' claims as rules that a program checks.

``figures/`` has one YAML file a figure. ``reproduction`` reads it, ``run`` runs it, ``claims`` checks its claims, and
``results`` writes the JSON file, the picture and the page of all results. ``portfolio/`` is the experiment in finance:
prices, market, strategies, back-tests, agents, augmenters.

The package belongs to the repository and is not in the wheel: run it in a clone, with ``python -m experiments NAME``.
It uses the public interface of ``resolvent`` only, and no module of ``resolvent`` imports it.
"""

FAILURE, WRONG_INPUT, NO_DATA = 1, 2, 4  # exit codes of the command line

"""The papers' figures as experiments, with the papers' claims as rules that a program checks.

``figures/`` has one YAML file a figure. ``reproduction`` reads it, ``run`` runs it, ``claims`` checks its claims, and
``results`` writes the JSON file, the picture and the page of all results.

The files and their machinery are part of the wheel: ``resolvent reproduce NAME`` works after ``pip install resolvent``,
without a clone, so that a reader of a paper can check a figure. Together they have about 220 kB, need no additional
dependency, and are not imported by ``import resolvent``.
"""

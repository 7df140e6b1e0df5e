"""The modules that extend the core: it knows their names, and imports them when it looks up the parts of a file.

Each module has ``REGISTRIES``, see ``resolvent.comparisons.experiment.registry``.
"""

__all__ = ["EXTENSIONS"]

EXTENSIONS = ("resolvent.papers.portfolio.parts",)

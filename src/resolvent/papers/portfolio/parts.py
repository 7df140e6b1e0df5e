"""What portfolios add to the parts of an experiment file: prices as data, policies, and augmenters."""

from resolvent.comparisons.experiment.registry import Registry
from resolvent.papers.portfolio import augmentation, augmenters, policies, traded_markets
from resolvent.papers.portfolio.augmentation import Augmentation
from resolvent.papers.portfolio.augmenters import Augmenter
from resolvent.problem.problem_data import ProblemData, ProblemModel

__all__ = ["REGISTRIES"]

REGISTRIES = (
    Registry(ProblemData, "data set", "data", (traded_markets,), by_key=(("prices", "prices"),)),
    Registry(ProblemModel, "model", "models", (policies,)),
    Registry(Augmentation, "augmentation", "augmentations", (augmentation,), default="Augmentation"),
    Registry(Augmenter, "augmenter", "augmenters", (augmenters,)),
)

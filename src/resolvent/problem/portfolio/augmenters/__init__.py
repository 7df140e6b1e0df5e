"""Models of daily returns that draw synthetic prices, each fitted to the real prices of one party's stocks."""

from resolvent.problem.portfolio.augmenters.augmenter import Augmenter, FittedAugmenter
from resolvent.problem.portfolio.augmenters.facts import StylisedFacts, stylised_facts
from resolvent.problem.portfolio.augmenters.gan import GAN
from resolvent.problem.portfolio.augmenters.gbm import GBM
from resolvent.problem.portfolio.augmenters.generation import generate
from resolvent.problem.portfolio.augmenters.vmm import VMM

__all__ = ["GAN", "GBM", "VMM", "Augmenter", "FittedAugmenter", "StylisedFacts", "generate", "stylised_facts"]

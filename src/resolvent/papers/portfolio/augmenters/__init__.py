"""Models of daily returns that draw synthetic prices, each fitted to the real prices of one party's stocks."""

from resolvent.papers.portfolio.augmenters.augmenter import Augmenter, FittedAugmenter
from resolvent.papers.portfolio.augmenters.gan import GAN
from resolvent.papers.portfolio.augmenters.gbm import GBM
from resolvent.papers.portfolio.augmenters.generation import generate
from resolvent.papers.portfolio.augmenters.vmm import VMM

__all__ = ["GAN", "GBM", "VMM", "Augmenter", "FittedAugmenter", "generate"]

"""Models of daily returns that draw synthetic prices, each fitted to the real prices of one party's stocks."""

from experiments.portfolio.augmenters.augmenter import Augmenter, FittedAugmenter
from experiments.portfolio.augmenters.gan import GAN
from experiments.portfolio.augmenters.gbm import GBM
from experiments.portfolio.augmenters.generation import generate
from experiments.portfolio.augmenters.vmm import VMM

__all__ = ["GAN", "GBM", "VMM", "Augmenter", "FittedAugmenter", "generate"]

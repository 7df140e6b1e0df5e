"""Losses: what a model minimises for each sample, and the score that is reported with it."""

from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from resolvent.problem.models.structured_losses import (
    MultiLabelCrossEntropy,
    NTXent,
    Poisson,
    Quantile,
    Reconstruction,
    TokenCrossEntropy,
)

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Loss", "MultiLabelCrossEntropy", "NTXent", "Poisson", "Quantile",
           "Reconstruction", "SquaredError", "TokenCrossEntropy"]

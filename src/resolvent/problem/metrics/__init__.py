"""Metrics: numbers that say how well a model predicts samples with known labels."""

from resolvent.problem.metrics.classification import (
    F1,
    ROCAUC,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    BrierScore,
    CalibrationError,
    LogLoss,
)
from resolvent.problem.metrics.metric import Metric, Predictions, from_function
from resolvent.problem.metrics.regression import MAE, R2, RMSE

__all__ = ["F1", "MAE", "R2", "RMSE", "ROCAUC", "Accuracy", "AveragePrecision", "BalancedAccuracy", "BrierScore",
           "CalibrationError", "LogLoss", "Metric", "Predictions", "from_function"]

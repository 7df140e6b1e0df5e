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
from resolvent.problem.metrics.structured import ExactMatch, MultiLabelF1, Perplexity, RecallAtK, TokenAccuracy
from resolvent.problem.models.losses import higher_is_better

__all__ = ["F1", "MAE", "R2", "RMSE", "ROCAUC", "Accuracy", "AveragePrecision", "BalancedAccuracy", "BrierScore",
           "CalibrationError", "ExactMatch", "LogLoss", "Metric", "MultiLabelF1", "Perplexity", "Predictions",
           "RecallAtK", "TokenAccuracy", "from_function", "higher_is_better"]

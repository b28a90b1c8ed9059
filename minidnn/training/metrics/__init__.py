"""Metrics of a whole set, for evaluations and epochs, which are no means of their batches."""

from minidnn.training.metrics.classes import (
    Accuracy,
    CohenKappa,
    ConfusionMatrix,
    F1Score,
    FBetaScore,
    JaccardIndex,
    MatthewsCorrCoef,
    Precision,
    Recall,
    Specificity,
)
from minidnn.training.metrics.metric import Metric
from minidnn.training.metrics.scores import (
    AUROC,
    AveragePrecision,
    MeanAbsoluteError,
    MeanSquaredError,
    R2Score,
    RootMeanSquaredError,
)

__all__ = [
    "AUROC",
    "Accuracy",
    "AveragePrecision",
    "CohenKappa",
    "ConfusionMatrix",
    "F1Score",
    "FBetaScore",
    "JaccardIndex",
    "MatthewsCorrCoef",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "R2Score",
    "Recall",
    "RootMeanSquaredError",
    "Specificity",
]

"""The losses that have a name in settings."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from jaxtyping import Array

from resolvent.errors import InputError, quote
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SampleLoss, SquaredError
from resolvent.problem.models.structured_losses import (
    MultiLabelCrossEntropy,
    NTXent,
    Poisson,
    Quantile,
    Reconstruction,
    TokenCrossEntropy,
)

LossName = Literal["cross_entropy", "binary_cross_entropy", "squared_error", "token_cross_entropy", "multi_label",
                   "quantile", "poisson", "nt_xent", "reconstruction"]
AnyLoss: TypeAlias = Loss | LossName | Callable[[Any, Any], Array]

_LOSSES: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy, "binary_cross_entropy": BinaryCrossEntropy, "squared_error": SquaredError,
    "token_cross_entropy": TokenCrossEntropy, "multi_label": MultiLabelCrossEntropy, "quantile": Quantile,
    "poisson": Poisson, "nt_xent": NTXent, "reconstruction": Reconstruction}


def loss_named(loss: AnyLoss) -> Loss:
    """A loss from its name, from a function (outputs, labels) -> [B], or unchanged."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in _LOSSES:
            raise InputError(f"loss={quote(loss)} is not known: use one of {sorted(_LOSSES)}, a Loss, or a function")
        return _LOSSES[loss]()
    return SampleLoss(loss)

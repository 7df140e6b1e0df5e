"""Federated classifiers and regressors with the interface of scikit-learn.

They work in pipelines, in cross-validation and in searches over hyperparameters. ``groups`` names the party of each
row. Importing this module imports scikit-learn, which takes more than 1 s.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.presets import fedavg
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, quote, shorten
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model, linear, logistic, mlp
from resolvent.problem.solvers.solver import SGD
from resolvent.simulator.run import simulate

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6
    def validate_data(estimator: Any, *args: Any, **options: Any) -> Any:
        """The checked inputs."""
        return estimator._validate_data(*args, **options)

_ROWS_MULTIPLE = 64  # rows are padded to a multiple, so that the folds of a cross-validation share compiled programs


class _FederatedEstimator(BaseEstimator):
    """What classifiers and regressors have in common."""

    def __init__(self, algorithm: Algorithm | None = None, *, model: Literal["linear", "mlp"] = "linear",
                 width: int = 64, l2: float = 0.0, rounds: int = 50, scale: Literal["standard", "none"] = "standard",
                 random_state: int = 0) -> None:
        self.algorithm = algorithm
        self.model = model
        self.width = width
        self.l2 = l2
        self.rounds = rounds
        self.scale = scale
        self.random_state = random_state

    def _fit(self, x: NDArray[Any], y: NDArray[Any], groups: ArrayLike | None, model: Model,
             classes: Sequence[str] | None) -> None:
        owners = np.zeros(len(x), int) if groups is None else np.asarray(groups)
        if owners.shape != (len(x),):
            raise InputError(f"groups has shape {shorten(owners.shape)} for {len(x)} rows: name the party of each row")
        self.scaler_ = StandardScaler(with_mean=self.scale == "standard", with_std=self.scale == "standard").fit(x)
        self.parties_, numbers = np.unique(owners, return_inverse=True)
        rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
        inputs = self.scaler_.transform(x)
        data = FederatedData.from_arrays(
            [inputs[r] for r in rows], [y[r] for r in rows], parties=[str(p) for p in self.parties_],
            classes=classes, task="regression" if classes is None else "classification", validation=0, test=0)
        algorithm = fedavg(SGD(0.5 if classes is not None else 0.1, batch_size=32, epochs=2)) if (
            self.algorithm is None) else self.algorithm
        with jax.enable_x64(True):
            result = simulate(algorithm, model, _padded(data), rounds=self.rounds, progress=False,
                              seed=self.random_state, evaluate_every=self.rounds)
            self.fitted_models_ = tuple(result.fitted(k) for k in range(len(rows)))
            self.shared_model_ = None if result.server_model is None else result.fitted()

    def _outputs(self, x: ArrayLike, groups: ArrayLike | None) -> tuple[Fitted, NDArray[Any]]:
        """A fitted model, and the outputs for rows: of each row's party, or of the shared model."""
        check_is_fitted(self)
        inputs = self.scaler_.transform(validate_data(self, x, reset=False, dtype=np.float64))
        if groups is None:
            shared = self.fitted_models_[0] if len(self.parties_) == 1 else self.shared_model_
            if shared is None:
                raise InputError("the algorithm has no shared model: name the party of each row with groups")
            return shared, shared.outputs_of_inputs(inputs)
        owners = np.asarray(groups)
        unknown = ~np.isin(owners, self.parties_)
        if unknown.any():
            raise InputError(f"groups has the party {quote(owners[unknown].tolist()[0])}, which fit has not had: leave "
                             "groups out to use the shared model")
        outputs: NDArray[Any] | None = None
        for party in np.unique(owners):
            fitted = self.fitted_models_[int(np.searchsorted(self.parties_, party))]
            of_party = fitted.outputs_of_inputs(inputs[owners == party])
            outputs = np.zeros((len(inputs), *of_party.shape[1:])) if outputs is None else outputs
            outputs[owners == party] = of_party
        assert outputs is not None
        return fitted, outputs


def _padded(data: FederatedData) -> FederatedData:
    """The same data with further rows that belong to no party and are never read."""
    missing = -len(data.x) % _ROWS_MULTIPLE
    x, y = (np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]) for a in (data.x, data.y))
    return replace(data, x=x, y=y)


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):
    """A classifier that is trained by a federated algorithm.

    Args:
        algorithm: the algorithm; default: FedAvg with SGD.
        model: ``linear``: logistic regression; ``mlp``: a multilayer perceptron.
        width: units of the hidden layer of ``mlp``.
        l2: weight of |params|^2 / 2 in every party's objective.
        rounds: number of rounds.
        scale: ``standard``: features get mean 0 and deviation 1 over the rows of all parties; ``none``: they do not.
        random_state: seed of the first model and of the minibatches.

    Attributes:
        classes_: the classes.
        parties_: the names of the parties, sorted.
        fitted_models_: the personal model of each party.
        shared_model_: the shared model, or None if the algorithm has none.

    Example:
        >>> from resolvent.comparisons.after.estimators import FederatedClassifier
        >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> classifier = FederatedClassifier(rounds=5).fit(x, ["a", "a", "b", "b"], groups=[0, 1, 0, 1])
        >>> classifier.predict([[-1.0], [4.0]]).tolist()
        ['a', 'b']
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on rows.

        Args:
            X: [n, features] inputs.
            y: [n] classes.
            groups: [n] the party of each row; None: all rows are one party's.
        """
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        count, features = len(self.classes_), x.shape[1]
        if count < 2:
            raise InputError(f"y has 1 class, {quote(self.classes_.tolist()[0])}, so there is nothing to learn: give "
                             "rows of another class")
        model = (logistic(features, count, l2=self.l2) if self.model == "linear" else
                 mlp(features, count, width=self.width, l2=self.l2))
        self._fit(x, numbers, groups, model, [str(i) for i in range(count)])
        return self

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        """[n, classes] the probability of each class of ``classes_``.

        Args:
            X: [n, features] inputs.
            groups: [n] the party of each row, whose personal model predicts it; None: the shared model.
        """
        fitted, outputs = self._outputs(X, groups)
        return fitted.probabilities(outputs)

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        """[n] the predicted classes.

        Args:
            X: [n, features] inputs.
            groups: [n] the party of each row, whose personal model predicts it; None: the shared model.
        """
        fitted, outputs = self._outputs(X, groups)
        labels: NDArray[Any] = self.classes_[fitted.decode(outputs).astype(int)]
        return labels


class FederatedRegressor(RegressorMixin, _FederatedEstimator):
    """A regressor that is trained by a federated algorithm. Targets are scaled to mean 0 and deviation 1.

    Args:
        algorithm: the algorithm; default: FedAvg with SGD.
        model: ``linear``: linear regression; ``mlp``: a multilayer perceptron.
        width: units of the hidden layer of ``mlp``.
        l2: weight of |params|^2 / 2 in every party's objective.
        rounds: number of rounds.
        scale: ``standard``: features get mean 0 and deviation 1 over the rows of all parties; ``none``: they do not.
        random_state: seed of the first model and of the minibatches.

    Attributes:
        parties_: the names of the parties, sorted.
        fitted_models_: the personal model of each party.
        shared_model_: the shared model, or None if the algorithm has none.

    Example:
        >>> from resolvent.comparisons.after.estimators import FederatedRegressor
        >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> regressor = FederatedRegressor(rounds=50).fit(x, [1.0, 3.0, 5.0, 7.0], groups=[0, 1, 0, 1])
        >>> regressor.predict([[4.0]]).round(1).tolist()
        [9.0]
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on rows.

        Args:
            X: [n, features] inputs.
            y: [n] targets.
            groups: [n] the party of each row; None: all rows are one party's.
        """
        x, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self.target_mean_, deviation = float(np.mean(targets)), float(np.std(targets))
        self.target_deviation_ = deviation or 1.0
        model = (linear(x.shape[1], l2=self.l2) if self.model == "linear" else
                 mlp(x.shape[1], 2, width=self.width, task="regression", l2=self.l2))
        self._fit(x, (targets - self.target_mean_) / self.target_deviation_, groups, model, None)
        return self

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        """[n] the predicted numbers.

        Args:
            X: [n, features] inputs.
            groups: [n] the party of each row, whose personal model predicts it; None: the shared model.
        """
        fitted, outputs = self._outputs(X, groups)
        return fitted.decode(outputs) * self.target_deviation_ + self.target_mean_

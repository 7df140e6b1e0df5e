"""Models: a predictor and its loss, built in or from functions, Equinox and Flax."""

from resolvent.problem.models.model import Model, from_equinox, from_flax, from_functions, linear, logistic, mlp
from resolvent.problem.models.networks import char_lstm, cifar_cnn, mnist_cnn, sentiment_lstm

__all__ = ["Model", "char_lstm", "cifar_cnn", "from_equinox", "from_flax", "from_functions", "linear", "logistic",
           "mlp", "mnist_cnn", "sentiment_lstm"]

"""Models: a predictor and its loss.

``linear``, ``logistic`` and ``mlp`` are built in, and so are the networks of the papers: ``mnist_cnn``, ``cifar_cnn``,
``char_lstm`` and ``sentiment_lstm``. ``from_functions``, ``from_equinox`` and ``from_flax`` make a model from your own
code. All of them return a ``Model``.
"""

from resolvent.problem.models.model import Model, from_equinox, from_flax, from_functions, linear, logistic, mlp
from resolvent.problem.models.networks import char_lstm, cifar_cnn, mnist_cnn, sentiment_lstm

__all__ = ["linear", "logistic", "mlp", "mnist_cnn", "cifar_cnn", "char_lstm", "sentiment_lstm",  # noqa: RUF022
           "from_functions", "from_equinox", "from_flax", "Model"]

"""Models: a predictor and its loss.

``linear``, ``logistic`` and ``mlp`` are built in, and so are the networks of the papers: ``mnist_cnn``, ``cifar_cnn``,
``char_lstm`` and ``sentiment_lstm``. ``from_functions``, ``from_equinox``, ``from_flax``, ``from_nnx`` and
``from_torch`` make a model from your own code. ``lora`` adapts a pretrained model. All of them return a ``Model``.
"""

from resolvent.problem.models.adapters import AdaptedModel, lora, read_weights
from resolvent.problem.models.model import Model, from_functions, linear, logistic, mlp
from resolvent.problem.models.networks import char_lstm, cifar_cnn, mnist_cnn, sentiment_lstm
from resolvent.problem.models.wrapped_modules import from_equinox, from_flax, from_nnx
from resolvent.torch.torch_models import from_torch, torch_module

__all__ = ["linear", "logistic", "mlp", "mnist_cnn", "cifar_cnn", "char_lstm", "sentiment_lstm",  # noqa: RUF022
           "from_functions", "from_equinox", "from_flax", "from_nnx", "lora", "read_weights", "Model",
           "AdaptedModel", "from_torch", "torch_module"]

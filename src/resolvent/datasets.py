"""Data sets by name: each is a function that returns ``FederatedData``."""

from resolvent.data.digits import digits
from resolvent.data.generators import fedplus_regression, fedprox_synthetic, sines, splitting_logistic, synthetic
from resolvent.data.images_text.formats import leaf, libsvm
from resolvent.data.images_text.images import cifar10, emnist, fashion_mnist, mnist
from resolvent.data.images_text.texts import sentiment, shakespeare, stackexchange
from resolvent.data.imported import from_consecutive, from_dataset
from resolvent.data.sample_trees import pad_sequences
from resolvent.tables.party_tables import from_frame, table

__all__ = ["cifar10", "digits", "emnist", "fashion_mnist", "fedplus_regression", "fedprox_synthetic",
           "from_consecutive", "from_dataset", "from_frame", "leaf", "libsvm", "mnist", "pad_sequences", "sentiment",
           "shakespeare", "sines", "splitting_logistic", "stackexchange", "synthetic", "table"]

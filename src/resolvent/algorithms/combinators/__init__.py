"""Combinators: functions from one algorithm to another, such as acceleration and compression."""

from resolvent.algorithms.combinators.abstention import Abstention
from resolvent.algorithms.combinators.adaptive_mu import AdaptiveMu
from resolvent.algorithms.combinators.anderson import Anderson
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.combinators.compressed import Compressed
from resolvent.algorithms.combinators.compressed_messages import CompressedMessages
from resolvent.algorithms.combinators.decentralised_anderson import DecentralisedAnderson
from resolvent.algorithms.combinators.ergodic import ErgodicAveraging
from resolvent.algorithms.combinators.explicit_mixture import ExplicitMixture
from resolvent.algorithms.combinators.fine_tuned import FineTuned
from resolvent.algorithms.combinators.held_out_interpolation import HeldOutInterpolation
from resolvent.algorithms.combinators.held_out_selection import HeldOutSelection
from resolvent.algorithms.combinators.meta_learned import MetaLearned
from resolvent.algorithms.combinators.momentum import Momentum
from resolvent.algorithms.combinators.norm_limit import NormLimit
from resolvent.algorithms.combinators.personal_layers import PersonalLayers
from resolvent.algorithms.combinators.pooled_data import PooledData
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.combinators.relative_delta import RelativeDelta
from resolvent.algorithms.combinators.server_optimizer import ServerOptimizer
from resolvent.algorithms.combinators.shared_until_trained import SharedUntilTrained
from resolvent.algorithms.combinators.sharpness_aware import SharpnessAware
from resolvent.algorithms.combinators.stale_replies import StaleReplies
from resolvent.algorithms.combinators.warm_start import WarmStart

__all__ = ["Abstention", "AdaptiveMu", "Anderson", "Attacked", "Combinator", "Compressed", "CompressedMessages",
           "DecentralisedAnderson", "ErgodicAveraging", "ExplicitMixture", "FineTuned",
           "HeldOutInterpolation", "HeldOutSelection", "MetaLearned", "Momentum", "NormLimit", "PersonalLayers",
           "PooledData", "PrivateParties", "RelativeDelta", "ServerOptimizer", "SharedUntilTrained", "SharpnessAware",
           "StaleReplies", "WarmStart"]

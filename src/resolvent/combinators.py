"""Combinators: functions from one algorithm to another, such as acceleration and compression."""

from resolvent.algorithms.combinators.anderson import Anderson, DecentralisedAnderson
from resolvent.algorithms.combinators.asynchronous import Asynchronous
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.combinators.centre_from_sums import CentreFromSums
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.combinators.compressed import Compressed, CompressedMessages
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.combinators.held_out import HeldOutInterpolation, HeldOutSelection
from resolvent.algorithms.combinators.model_state import ModelState
from resolvent.algorithms.combinators.momentum import Momentum
from resolvent.algorithms.combinators.objectives import ExplicitMixture, MetaLearned, SharpnessAware
from resolvent.algorithms.combinators.personal_layers import PersonalLayers
from resolvent.algorithms.combinators.personal_use import FineTuned, SharedUntilTrained
from resolvent.algorithms.combinators.pooled_data import PooledData
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.combinators.replies import NormLimit, ShareLimit, StaleReplies
from resolvent.algorithms.combinators.server_steps import ErgodicAveraging, ServerOptimizer
from resolvent.algorithms.combinators.warm_start import WarmStart
from resolvent.algorithms.combinators.with_objective import WithObjective

__all__ = ["Anderson", "Asynchronous", "Attacked", "CentreFromSums", "Combinator",
           "Compressed", "CompressedMessages", "DecentralisedAnderson", "ErgodicAveraging", "ExplicitMixture",
           "FineTuned", "FixedPointSums", "HeldOutInterpolation", "HeldOutSelection", "MetaLearned", "ModelState",
           "Momentum", "NormLimit", "PersonalLayers", "PooledData", "PrivateParties", "ServerOptimizer",
           "ShareLimit", "SharedUntilTrained", "SharpnessAware", "StaleReplies", "WarmStart", "WithObjective"]

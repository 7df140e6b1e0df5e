"""Differential privacy: which compositions are private, what they spend, budgets of runs, and a test by attack."""

from resolvent.algorithms.privacy.budget import PrivacyBudget, PrivacyLedger
from resolvent.algorithms.privacy.composition import (
    PrivateWork,
    check_private_records,
    noise_within,
    party_epsilon,
    record_epsilons,
    rounds_within,
)
from resolvent.algorithms.privacy.membership import (
    MembershipAttack,
    advantage_bound,
    attack_statistics,
    draw_members,
    membership_inference,
)

__all__ = [
    "MembershipAttack",
    "PrivacyBudget",
    "PrivacyLedger",
    "PrivateWork",
    "advantage_bound",
    "attack_statistics",
    "check_private_records",
    "draw_members",
    "membership_inference",
    "noise_within",
    "party_epsilon",
    "record_epsilons",
    "rounds_within",
]

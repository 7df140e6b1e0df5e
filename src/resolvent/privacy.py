"""Differential privacy: which compositions are private, what they spend, budgets of runs, and a test by attack."""

from resolvent.differential_privacy.account import PrivacyAccount
from resolvent.differential_privacy.audit import Audit, audit_scores, epsilon_lower_bound
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.differential_privacy.composition import (
    PrivateWork,
    check_private_records,
    noise_within,
    record_epsilons,
    rounds_within,
)
from resolvent.differential_privacy.ledger import PrivacyLedger
from resolvent.differential_privacy.membership import (
    MembershipAttack,
    advantage_bound,
    attack_statistics,
    draw_members,
    membership_inference,
)
from resolvent.differential_privacy.parties import PartyEpsilons, party_epsilon, party_epsilons

__all__ = ["Audit", "MembershipAttack", "PartyEpsilons", "PrivacyAccount", "PrivacyBudget", "PrivacyLedger",
           "PrivateWork", "advantage_bound", "attack_statistics", "audit_scores", "check_private_records",
           "draw_members", "epsilon_lower_bound", "membership_inference", "noise_within", "party_epsilon",
           "party_epsilons", "record_epsilons", "rounds_within"]

"""What a participant demands in a federation, and what it does without if all of them are on one machine.

A site, a server and a lead are each given one policy when they start, and no message changes it.
"""

import os
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "RESOLVENT_POLICY"  # the command that starts a participant sets it for the processes of its jobs


@dataclass(frozen=True)
class Policy:
    """The rules of a participant that neither the plan nor the limits of a site change.

    Attributes:
        name: of the policy, in the record of a run.
        allows_any_part: whether a plan may name every part of the user's own, attacks and pooled rows; otherwise only
            parts of the library that real parties can run, and the models that the participant allows by name.
        has_secret_noise: whether the noise of differential privacy, and cohorts that amplify it, are drawn from secrets
            of the participants; otherwise from the plan's seed, as in ``simulate``: then nobody is protected, and no
            epsilon is counted.
        has_own_splits: whether a site divides its rows, orders its minibatches and rounds its scores by a secret of its
            own, with a version of its table to which budgets belong; otherwise it does as ``simulate`` does.
        scores_first_model: whether the model before the first round is evaluated. It is no result of training, so that
            its scores are answers to a question of the server's own.
        continues_runs: whether the lead continues an unfinished run, and keeps a complete one; otherwise it begins
            anew, because the other participants do not exist any more.

    Example:
        >>> FEDERATION.has_secret_noise, REHEARSAL.has_secret_noise
        (True, False)
    """

    name: str
    allows_any_part: bool
    has_secret_noise: bool
    has_own_splits: bool
    scores_first_model: bool
    continues_runs: bool


FEDERATION: Final = Policy("federation", allows_any_part=False, has_secret_noise=True, has_own_splits=True,
                           scores_first_model=False, continues_runs=True)
"""The policy between organizations, which holds wherever no other is given."""

REHEARSAL: Final = Policy("rehearsal", allows_any_part=True, has_secret_noise=False, has_own_splits=False,
                          scores_first_model=True, continues_runs=False)
"""The policy where one person has all rows: the models are those of a simulation."""


def policy_of_process() -> Policy:
    """The policy that the command which started this process has chosen."""
    return REHEARSAL if os.environ.get(VARIABLE) == REHEARSAL.name else FEDERATION

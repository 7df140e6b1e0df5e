"""What the server of a rehearsal with secure sums got from each site, and what was behind it.

It reads the folders of the sites, which only a rehearsal has on one machine: no message contains what a site hides.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.job import plan_digest
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import run_of_method, runs_of
from resolvent.federation.protocol.stores import PartyStore
from resolvent.federation.protocol.wire import decode
from resolvent.federation.secure.answers import MASKED
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite


class HiddenNumbers(NamedTuple):
    """The first numbers of the last reply of a site.

    Attributes:
        received: what the server got, read as fixed-point numbers.
        hidden: what the site computed: w_k x_k.
    """

    method: str
    site: str
    received: list[float]
    hidden: list[float]


def hidden_numbers(experiment: FederatedExperiment, kits: Mapping[str, Path], run: str,
                   count: int = 3) -> Iterator[HiddenNumbers]:
    """The first numbers that each site hid in its last reply of each method, with the first seed.

    Args:
        kits: site -> its kit.
    """
    rules = SumRules.of_plan(experiment.privacy)
    plan = plan_digest(run, experiment.text, experiment.refit, experiment.keeps_validation)
    for number, label in enumerate(experiment.labels):
        algorithm = experiment.algorithm(label)
        if rules is None or not isinstance(algorithm, FixedPointSums):
            continue
        for name, kit in kits.items():
            folder = runs_of(kit) / run / "stores" / f"{number:02d}"
            note = KitNote(kit)
            site = SecureSite(name, run_of_method(run, number, plan), folder,
                              Identity(note.sign, note.verify_participant), rules, (*kits,))
            with PartyStore(folder) as store:
                reply = decode(store.read_reply())
            sent = reply.arrays[MASKED]
            integers = sent - site.repeated_mask((reply.round, reply.phase + 1), reply.fact("sent", str), len(sent),
                                                  sent.dtype.str)
            yield HiddenNumbers(label, name, _as_numbers(sent[:count], algorithm.fraction),
                                _as_numbers(integers[:count], algorithm.fraction))


def _as_numbers(integers: Any, fraction: int) -> list[float]:
    signed = integers.view(f"<i{integers.dtype.itemsize}")
    return [float(value) for value in np.ldexp(signed.astype(float), -fraction)]

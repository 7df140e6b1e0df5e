"""What ``PrivateParties`` spends, against everybody who sees a different part of a run."""

import math
from typing import NamedTuple

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.participation.rules import Bernoulli, Full, Participation
from resolvent.errors import InputError
from resolvent.math.accounting import Accountant, gaussian_epsilon


class PartyEpsilons(NamedTuple):
    """Epsilons of single parties, which differ in what the adversary knows.

    Attributes:
        parties: against the other parties and everybody who has the models, and does not know who took part in which
            round. Sampling amplifies it: over a network the cohorts come from the server's secret, and the lead and the
            people at the server are not such adversaries. If the parties add the noise, another party knows its own
            part of it, which therefore does not count.
        known_cohorts: against whoever has the models and knows who took part, such as the lead, who gets the numbers of
            replies, or somebody who watches the network: sampling does not amplify it. It holds for another party as
            well, which knows its own part of the noise.
        server: against the server, which knows who took part and has every reply. It is infinite if the server adds the
            noise. If the parties add it, it is that of the noise of one party, because a reply is seen.
        secure_server: against the server in secure sums, which has the sum only and none of the noise; infinite if the
            server adds the noise.

    Example:
        >>> rv.privacy.PartyEpsilons(2.1, 9.8, math.inf).parties
        2.1
    """

    parties: float
    known_cohorts: float
    server: float
    secure_server: float = math.inf


def private_parties(algorithm: Algorithm) -> PrivateParties:
    """The ``PrivateParties`` of an algorithm."""
    private = next((layer for layer in layers(algorithm) if isinstance(layer, PrivateParties)), None)
    if private is None:
        raise InputError(f"{type(algorithm).__name__} does not protect parties: put "
                         "rv.combinators.PrivateParties(...) around a method such as fedavg")
    return private


def noise_parties(algorithm: Algorithm | None) -> int:
    """The smallest number of parties whose noise together is the stated one; 0 if the parties do not add it."""
    for layer in () if algorithm is None else layers(algorithm):
        if isinstance(layer, PrivateParties) and layer.noise == "parties":
            return math.ceil(float(layer.least_parties))  # type: ignore[arg-type]
    return 0


def party_epsilons(algorithm: Algorithm, *, rate: float, rounds: int, delta: float,
                   accountant: Accountant = "pld", colluding: int = 0) -> PartyEpsilons:
    """The epsilons for single parties after ``rounds`` rounds of an algorithm with ``PrivateParties``.

    Neighbouring federations differ in one party, which takes part in no round.

    Every round releases noise, also one without any party, and all rounds count.

    Args:
        algorithm: an algorithm with ``PrivateParties``.
        rate: probability with which a party takes part in a round, independently of the others
            (``rv.participation.Bernoulli``); 1 if all take part.
        rounds: number of rounds.
        delta: the delta, in (0, 1), usually below 1/N.
        accountant: ``pld`` (tight) or ``rdp``.
        colluding: number of parties that tell their own noise: to the server, for ``secure_server``, and to each other,
            for ``parties`` and ``known_cohorts``, where it is at least 1. It matters if the parties add the noise.

    Raises:
        InputError: the algorithm has no ``PrivateParties``; the parties add the noise and not all take part; or
            dp-accounting is not installed.

    Example:
        >>> algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=10.0)  # doctest: +SKIP
        >>> rv.privacy.party_epsilons(algorithm, rate=0.1, rounds=20, delta=1e-4).parties  # doctest: +SKIP
    """
    private = private_parties(algorithm)
    _check_rate(private, rate)
    z, of_server, of_secure_server = float(private.effective_multiplier), math.inf, math.inf
    if private.noise == "parties":
        of_server = gaussian_epsilon(unknown_noise(private, math.inf), 1.0, rounds, delta, accountant)
        of_secure_server = gaussian_epsilon(unknown_noise(private, colluding), 1.0, rounds, delta, accountant)
        z = unknown_noise(private, max(1, colluding))
    return PartyEpsilons(gaussian_epsilon(z, rate, rounds, delta, accountant),
                         gaussian_epsilon(z, 1.0, rounds, delta, accountant),
                         *((of_server, of_secure_server) if rounds else (0.0, 0.0)))


def unknown_noise(private: PrivateParties, known: float) -> float:
    """The noise multiplier of a round for whoever knows the noise that this number of parties have added.

    If the parties add the noise, every one of them knows its own part, and can subtract it from the models. A sum has
    the noise of at least ``least_parties`` parties; that of the protected party is always unknown.
    """
    z = float(private.effective_multiplier)
    if private.noise == "server":
        return z
    parties = float(private.least_parties)  # type: ignore[arg-type]
    return z * math.sqrt(max(1.0, parties - known) / parties) if parties > 1 else z


def party_epsilon(algorithm: Algorithm, *, rate: float, rounds: int, delta: float,
                  accountant: Accountant = "pld") -> float:
    """The epsilon for single parties against the other parties: ``party_epsilons(...).parties``.

    Args:
        algorithm: an algorithm with ``PrivateParties``.
        rate: probability with which a party takes part in a round, independently of the others
            (``rv.participation.Bernoulli``); 1 if all take part.
        rounds: number of rounds.
        delta: the delta, in (0, 1), usually below 1/N.
        accountant: ``pld`` (tight) or ``rdp``.

    Raises:
        InputError: see ``party_epsilons``.

    Example:
        >>> algorithm = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=10.0)  # doctest: +SKIP
        >>> rv.privacy.party_epsilon(algorithm, rate=0.1, rounds=20, delta=1e-4)  # doctest: +SKIP
    """
    private = private_parties(algorithm)
    _check_rate(private, rate)
    return gaussian_epsilon(unknown_noise(private, 1), rate, rounds, delta, accountant)


def party_rate(private: PrivateParties, participation: Participation, parties: int) -> float:
    """The probability with which a party takes part in a round, independently of the others."""
    if private.noise == "parties" and float(private.cohort) < parties:  # type: ignore[arg-type]
        raise InputError(f"privacy: PrivateParties(noise='parties', cohort={private.cohort}) with {parties} parties: "
                         "if more than `cohort` take part, the noise depends on their number, which is not accounted "
                         f"for. Set cohort={parties}, or noise='server'")
    if isinstance(participation, Full):
        return 1.0
    if isinstance(participation, Bernoulli):
        rate = float(participation.probability)  # type: ignore[arg-type]
        _check_rate(private, rate)
        return rate
    raise InputError(f"privacy: {type(participation).__name__} does not draw parties independently of each other, "
                     "which the accounting of PrivateParties needs: use Bernoulli or Full")


def _check_rate(private: PrivateParties, rate: float) -> None:
    if private.noise == "parties" and rate < 1:
        raise InputError("privacy: with PrivateParties(noise='parties') the server knows whose noise is in a sum, so "
                         f"that cohorts drawn with rate={rate:g} are not accounted for: let all parties take part "
                         "(Full), or use noise='server'")

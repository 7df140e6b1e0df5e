"""Any algorithm with malicious parties."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.arguments import checked

__all__ = ["attacked"]


@checked
def attacked(inner: Algorithm, attack: Attack, *, share: float = 0.2, parties: tuple[int, ...] = (),
             seed: int = 0) -> Algorithm:
    """Any algorithm under attack: a share of the parties is malicious.

    The same parties are malicious in all rounds and for all algorithms with the same seed and number of parties.

    Problem: the inner algorithm's.
    Update: the inner algorithm's, but the attack changes the updates that malicious parties send.
    Communication: the inner algorithm's, and one flag down; a party stores what the inner algorithm stores.
    Defaults: one party in five is malicious.
    Use when: you want to know how malicious parties affect a method; the scores are those of all parties on their own
    data.

    Args:
        inner: the algorithm that is attacked.
        attack: what malicious parties do.
        share: share of all parties that is drawn to be malicious, in [0, 1].
        parties: ids of parties that are malicious in addition to the drawn ones.
        seed: seed of the draw of malicious parties.

    Raises:
        InputError: ``share`` is outside [0, 1]; at the start of a run, a party id does not exist.

    Warns:
        BreakdownWarning: an aggregator of ``inner`` has a breakdown point, and the share is beyond it.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> algorithm = rv.attacked(rv.fedavg(solver), rv.attacks.SignFlip(), share=0.2)

    References:
        The attack's paper, see ``rv.attacks``.
    """
    return Attacked(inner=inner, attack=attack, share=share, parties=parties, seed=seed)

"""What the parties of a run have released: enough to compose it with later runs on the same samples."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from resolvent.errors import InputError
from resolvent.math.accounting import Releases

Unit = Literal["records", "parties"]
ADJACENCY: Final[Mapping[Unit, str]] = {
    "records": "one record of a party is replaced by one with the gradient zero, the number of records being public",
    "parties": "one party takes part in no round, the number of parties being public"}
"""In what two data sets differ between which an epsilon is a bound."""


class PrivacyAccount(NamedTuple):
    """The releases of a run, and of the run from whose model it started.

    ``result.privacy_account`` has that of a run with ``privacy=``; a run that starts from the result adds it to its
    own.

    Attributes:
        unit: what is protected: ``records`` or ``parties``.
        of_parties: the releases of each party: noise multiplier, sampling rate and number of noisy sums.

    Example:
        >>> result = rv.simulate(algorithm, model, data, rounds=20, privacy=budget)  # doctest: +SKIP
        >>> result.privacy_account.of_parties[0]  # doctest: +SKIP
        >>> rv.privacy.PrivacyAccount("parties", ()).adjacency
        'one party takes part in no round, the number of parties being public'
    """

    unit: Unit
    of_parties: tuple[tuple[Releases, ...], ...]

    @property
    def adjacency(self) -> str:
        """In what two data sets differ between which epsilon is a bound."""
        return ADJACENCY[self.unit]

    def facts(self) -> dict[str, Any]:
        """The account as a run's facts have it: the different lists of releases, and the number of each party's."""
        different = list(dict.fromkeys(self.of_parties))
        numbers = {releases: i for i, releases in enumerate(different)}
        return {"unit": self.unit, "adjacency": self.adjacency,
                "releases": [[list(part) for part in releases] for releases in different],
                "of_party": [numbers[releases] for releases in self.of_parties]}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "PrivacyAccount":
        """The account of a run, from its facts."""
        different = [tuple(Releases(float(z), float(rate), int(steps)) for z, rate, steps in releases)
                     for releases in facts["releases"]]
        return cls(facts["unit"], tuple(different[i] for i in facts["of_party"]))

    def for_parties(self, names: Sequence[str] | None, of_run: Sequence[str] | None, count: int) -> "PrivacyAccount":
        """The account for the parties of a later run: parties are the same if their names are.

        Args:
            names: names of the parties of this account; None: they have none.
            of_run: names of the parties of the later run; None: they have none.
            count: number of parties of the later run.

        Raises:
            InputError: parties without names cannot be matched.
        """
        if names is None or of_run is None:
            if count != len(self.of_parties):
                raise InputError(f"privacy: the run to start from has {len(self.of_parties)} parties without names, "
                                 f"this one {count}: give both runs data whose parties have names")
            return self
        by_name = dict(zip(names, self.of_parties, strict=True))
        return self._replace(of_parties=tuple(by_name.get(name, ()) for name in of_run))

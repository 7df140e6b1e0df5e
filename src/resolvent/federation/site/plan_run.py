"""One plan at a site, of any kind: its limits, its agreement with the other sites, and a party for each method.

Everything that leaves the site for a plan is an answer of ``PlanRun``, and it leaves by four methods, which the server
calls in this order: ``describe``, ``prepare``, ``handle`` in the rounds, and ``finish``. A check that holds for all
plans belongs here: ``check_limits`` before anything about the table leaves, and ``prepare`` when it is known which
methods will read which rows.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.files.folder_lock import RunningError
from resolvent.differential_privacy.account import ADJACENCY
from resolvent.errors import quote
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.job import signed_size
from resolvent.federation.protocol.limits import Asked, Usage, check_parts, reasons_to_refuse, refusal_of_limits
from resolvent.federation.protocol.names import JOURNAL, VERSIONS, run_of_method
from resolvent.federation.protocol.plan import Part, Plan
from resolvent.federation.protocol.refusals import OF_VALUES, Refusal, RefusalCode, refusing
from resolvent.federation.protocol.stores import PartyStore
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.budgets import DELTA, has_private_work
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.leverage import LeverageError, Span
from resolvent.federation.site.party import Departure, Party
from resolvent.federation.site.planned_work import Membership, PlannedWork
from resolvent.federation.site.scores import smallest_split
from resolvent.federation.site.sum_party import SumParty, secure_site
from resolvent.problem.problem import Problem
from resolvent.simulator.record.party_metrics import PartyMetrics

_LOCK_SECONDS, _LOCK_PAUSE = 30.0, 0.1
# Whether a plan is beyond these limits depends on the values in the rows.
_OF_ROWS = frozenset({"min_cell", "min_rows", "max_leverage", "max_leverage_in_sums", "max_parameters_per_row"})
_Plan = TypeVar("_Plan", bound=Plan)


class SiteMethod(NamedTuple):
    """A method of a plan with a seed and a fold, on the rows of the site.

    Attributes:
        problem: the problem of the site alone.
        metrics: what is measured in addition to the loss and the score.
        secret: orders the minibatches, see ``Party``.
        guard: see ``Party``.
    """

    label: str
    part: Part
    algorithm: Algorithm
    problem: Problem
    metrics: PartyMetrics | None = None
    secret: bytes | None = None
    guard: Callable[[Any], None] = lambda payload: None


class PlanRun(ABC, Generic[_Plan]):
    """One plan at a site; after the agreement of the sites there is a party for each method and seed.

    Args:
        identity: the certificate of the site.

    Attributes:
        plan: the plan, bound with the parts that are installed at the site.
        version: number of the version of the table; None without splits of the site's own, see ``Policy``.
        methods: label -> algorithm, after ``prepare``.
        span: the columns of everything that the site has answered about these rows, after ``prepare``; None if they
            are not counted.
        sizes: site -> its number of training rows; of this site alone before ``accept_sizes``, and none if only their
            sum is told.
        sums: answers the messages of the secure sums outside of the rounds; None without them.
    """

    version: int | None = None

    def __init__(self, folder: Path, site: SiteFile, plan: _Plan, membership: Membership,
                 identity: Identity, *, lead: str = "", digest: str = "") -> None:
        self.plan, self._folder, self._site, self._membership = plan, folder, site, membership
        self._lead, self._digest, self._identity, self._limits = lead, digest, identity, site.limits
        # The budgets belong to the rows; without splits of the site's own, to the file.
        self._journal = Journal(folder.parent / JOURNAL, site.table, lead, digest, site.table)
        self._versions = folder.parent / VERSIONS if plan.policy.has_own_splits else None
        self._parties: list[Party] = []
        self._stores: list[PartyStore] = []
        self.methods: dict[str, Algorithm] = {}
        self.sums: SumParty | None = None
        self.span: Span | None = None
        with self._counting_refusals():
            self._read_table()
        self.sizes = {membership.name: self.training_rows} if self._tells_size else {}

    # What a kind of plan says

    @abstractmethod
    def _read_table(self) -> None:
        """Read the site's table."""

    @property
    @abstractmethod
    def row_counts(self) -> dict[str, int]:
        """Name of a set of rows, such as a split -> its number of rows."""

    @property
    @abstractmethod
    def training_rows(self) -> int:
        """Number of rows on which a reply depends."""

    @property
    def _tells_size(self) -> bool:
        """Whether this number leaves the site with its report, and not only in a secure sum."""
        return True

    @abstractmethod
    def _algorithm(self, label: str) -> Algorithm:
        """A method as far as it is known before the agreement."""

    @abstractmethod
    def report(self) -> Any:
        """What the site says about its table."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The answer about the table, which leaves the site."""

    @abstractmethod
    def agree_alone(self) -> dict[str, Any]:
        """The content of the message ``prepare`` if this site were the only one.

        Raises:
            InputError: the site's own table gives no agreement.
        """

    @abstractmethod
    def _methods_for(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[SiteMethod]]:
        """The answer to the agreement of the sites, and the methods with each seed on the site's rows.

        Args:
            content: the message ``prepare``.
        """

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Store what the site keeps of the run; returns what leaves: ``methods``, the labels that are complete."""

    def _own_reasons(self) -> dict[str, str]:
        """Name of a limit that only this kind of plan can exceed -> the reason."""
        return {}

    @abstractmethod
    def _columns_to_count(self) -> Mapping[str, NDArray[Any]] | None:
        """Column -> [rows of the version, ...] what the answers are about, after ``_methods_for``; None: only noise."""

    def _check_table(self) -> None:
        """Refuse columns and rows of which nothing may leave; it is called when the plan is within the limits."""

    def _reported_columns(self) -> Mapping[str, NDArray[Any]]:
        """As ``_columns_to_count``, those of the report, which leaves before it; none if every plan has one report."""
        return {}

    @abstractmethod
    def lines_before(self) -> Iterator[str]:
        """Lines for a person about what would leave the site before the rounds."""

    def lines_after(self) -> Iterator[str]:
        """Lines for a person about what would leave the site beside the replies."""
        yield from ()

    # What is the same for all kinds

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        """Count a refusal that says something about the rows, and give another one when too many have."""
        try:
            yield
        except Refusal as refusal:
            if refusal.code in OF_VALUES or not _OF_ROWS.isdisjoint(refusal.limits):
                asked = Asked(needed=Usage(refusals=1), used=self._journal.used(self._lead, without=self._digest))
                if reasons := reasons_to_refuse(self._limits, asked):
                    raise refusal_of_limits(reasons, self._limits) from refusal
                self._journal.append("refused", run=self._folder.name, column=refusal.column)
            raise

    def check_limits(self) -> None:
        """Check the plan against the site's limits, before anything about the table leaves the site.

        A party checks again, with what follows from the agreement.

        Raises:
            Refusal: the site does not take part; the message has every reason.
        """
        with self._counting_refusals():
            self._check_limits()

    def _check_limits(self) -> None:
        plan, limits, needed, methods = self.plan, self._limits, [Usage(jobs=1, refusals=1)], list[Asked]()
        with plan.precision():
            for label in plan.labels:
                algorithm = self._algorithm(label)
                with refusing(RefusalCode.EXPERIMENT):
                    check_parts(algorithm, plan.policy)
                methods.append(Asked(method=plan.preset_of(label), algorithm=algorithm, rounds=plan.rounds_of(label),
                                     samples=self.training_rows))
                needed += [self._needed(label, algorithm, part) for part in plan.parts]
            reasons = reasons_to_refuse(limits, self._asked(Usage(*map(sum, zip(*needed, strict=True)))), *methods)
        if reasons := reasons | self._own_reasons():
            raise refusal_of_limits(reasons, limits)
        self._check_table()
        if columns := self._reported_columns():
            self._count_columns(columns, in_a_sum=not self._tells_size)

    def _needed(self, label: str, algorithm: Algorithm, part: Part) -> Usage:
        """What a method with a seed and a fold asks for; its privacy loss depends on the model: not known yet."""
        rounds = self.plan.rounds_of(label)
        evaluations = len(self._planned(label, algorithm, part).scored) if self._limits.scores else 0
        epsilon = 0.0 if has_private_work(algorithm) else math.inf
        return Usage(rounds, rounds * len(algorithm.phases), 0, evaluations, epsilon)

    def _count_columns(self, columns: Mapping[str, NDArray[Any]], *, in_a_sum: bool) -> None:
        """Count the plan's columns together with all earlier plans'; nothing is stored if they are refused.

        What the site tells by itself, such as a report before secure sums, is also judged without the sums.

        Args:
            columns: name -> [rows, ...] values of all rows of the version; 0 for rows that are not used.
            in_a_sum: whether they leave the site in secure sums only.
        """
        limits, rows = self._limits, len(next(iter(columns.values())))
        of_all = "max_leverage" if self.plan.privacy is None else "max_leverage_in_sums"
        judged = {"columns": of_all} if in_a_sum else {"told": "max_leverage", "columns": of_all}
        if self.version is None or getattr(limits, of_all) is None:
            return
        spans = {}
        for kind, name in judged.items():
            with self._refusing_leverages(name):
                spans[kind] = self._stored_span(kind, rows).extended(columns, getattr(limits, name),
                                                                     limits.max_parameters_per_row)
        for kind, span in spans.items():
            self._journal.write_file(self._span_file(kind), span.write)
        self.span = spans["columns"]
        if self._journal.latest("columns", run=self._folder.name, plan=self._digest, rank=self.span.rank) is None:
            self._journal.append("columns", run=self._folder.name, version=self.version, rank=self.span.rank,
                                 leverage=self.span.largest)

    def _count_round(self, columns: Mapping[str, NDArray[Any]], share: float) -> None:
        """Count the columns that a round's reply adds, together with everything before; see ``leverage``.

        Args:
            columns: as in ``_count_columns``.
            share: the site's share of the rows in the sum.
        """
        largest = self._limits.max_leverage
        if self.version is None or largest is None or self.span is None:
            return
        before, limit = self._span_of_rounds(), largest / share
        with self._refusing_leverages("max_leverage"):
            span = before.extended(columns, limit)
            # All rows of the sum have this rank times their mean leverage; of a full span, every further column counts.
            asked = sum(values.shape[1] for values in columns.values())
            added = span.rank - before.rank if span.rank < len(span.leverages) else asked
            earlier = [entry["rank"] for entry in self._journal.of("round", version=self.version)]
            rank = added + max([before.rank, *earlier])
            if rank > limit * len(span.leverages):
                raise LeverageError(next(iter(columns)), f"with it, the rounds have {rank} independent columns, more "
                                    f"than {largest:.3g} for each row of the sum")
        if added:
            self._journal.write_file(self._span_file("rounds"), span.write)
            self._journal.append("round", run=self._folder.name, version=self.version, rank=rank, leverage=span.largest)

    def _span_of_rounds(self) -> Span:
        """The span of everything that the site has answered, with what the rounds have added."""
        assert self.span is not None
        return self._stored_span("rounds", len(self.span.leverages)).extended({"columns": self.span.basis.T})

    def _stored_span(self, name: str, rows: int) -> Span:
        """The stored span of a kind: ``columns``, ``told`` or ``rounds``; without one, that of the constant column."""
        path = self._span_file(name)
        return Span.read(path) if self._journal.has_file(path) else Span.of_rows(rows)

    def _span_file(self, name: str) -> Path:
        return self._folder.parent / VERSIONS / f"{name}-{self.version}.npy"

    @property
    def _smaller(self) -> str:
        """What makes a plan ask less of the rows."""
        return "leave columns out or join levels"

    @contextmanager
    def _refusing_leverages(self, name: str) -> Iterator[None]:
        try:
            yield
        except LeverageError as error:
            sums = "" if self.plan.privacy is not None else ", or ask for secure sums (privacy: {secure_sums: true})"
            reason = f"column {quote(error.column)}: {error}; {self._smaller}{sums}"
            raise refusal_of_limits({name: reason}, self._limits, column=error.column) from error

    def _asked(self, needed: Usage) -> Asked:
        """What the plan asks of the site, whichever its methods are."""
        return Asked(sites=len(self._membership.sites), labels=tuple(self.plan.table.labels),
                     in_a_sum=self.plan.privacy is not None, needed=needed,
                     scored_rows=smallest_split(self.row_counts, self._limits.min_cell) if needed.scores else None,
                     used=self._journal.used(self._lead, without=self._digest))

    def _planned(self, label: str, algorithm: Algorithm, part: Part) -> PlannedWork:
        """The messages of a method with a seed and a fold that the plan contains."""
        plan = self.plan
        return PlannedWork(algorithm, plan.participation(), self._membership, part.seed, plan.rounds_of(label),
                           plan.evaluate_every, plan.policy, plan.may_end_early, part.fold)

    def own_size(self) -> dict[str, Any]:
        """The signature of the number of training rows, which leaves the site with the report that has the number."""
        if not self._tells_size:
            return {}
        return {"size": dict(self._identity.sign(signed_size(self._digest, self._membership.name, self.training_rows)))}

    def accept_sizes(self, content: Any) -> None:
        """Accept the numbers of training rows of all sites, each signed by its site, and none of them a second time.

        Args:
            content: site -> ``rows`` and ``signature``, as the server has sent them.

        Raises:
            Refusal: a number is not signed, or another one was accepted in this run.
        """
        if not self._tells_size:
            return
        run, accepted = self._folder.name, dict[str, int]()
        entry = self._journal.latest("sizes", run=run, plan=self._digest)
        before = {self._membership.name: self.training_rows} if entry is None else dict(entry["sizes"])
        for site in self._membership.sites:
            signed = part_of(content, site)
            rows: Any = signed.get("rows")
            with refusing(RefusalCode.SIZES):
                signer = self._identity.verify(signed_size(self._digest, site, rows), signed.get("signature"))
            if signer != site or type(rows) is not int or rows != before.get(site, rows):
                raise Refusal(RefusalCode.SIZES, f"{site} is said to have {rows} training rows, signed by {signer}, "
                              f"and before it had {before.get(site, 'not said any number')}")
            accepted[site] = rows
        self.sizes = accepted
        if entry is None or before != before | accepted:
            self._journal.append("sizes", run=run, sizes=before | accepted)

    def prepare(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Get ready for the rounds with the agreement of the sites; a run is prepared for one agreement only.

        Raises:
            Refusal: the agreement is another one, or the site does not take part.
        """
        run, agreement = self._folder.name, sha256(dumps(dict(content), sort_keys=True).encode()).hexdigest()
        before = self._journal.latest("agreement", run=run, plan=self._digest)
        if before is not None and before["agreement"] != agreement:
            raise Refusal(RefusalCode.PLAN, "the site has been prepared for this run with another agreement, such as "
                          "another encoding: the same rows would be asked twice")
        if before is None and (self._folder / "prepared.json").exists():
            raise Refusal(RefusalCode.PLAN, "an earlier version of resolvent has prepared the site for this run: "
                          "finish it with that version, or start a new run")
        self.close()
        with self.plan.precision(), self._counting_refusals():
            answer, methods = self._methods_for(content)
            self._folder.mkdir(parents=True, exist_ok=True)
            for method in methods:
                self._parties.append(self._party(method))
            self.methods = {method.label: method.algorithm for method in methods}
            try:
                self._count_epsilons([method.label for method in methods])
                if self.version is not None and (columns := self._columns_to_count()) is not None:
                    self._count_columns(columns, in_a_sum=self.plan.privacy is not None)
            except Refusal:
                self.close()  # so that no message of the rounds is answered
                raise
        if before is None:
            self._journal.append("agreement", run=run, agreement=agreement)
        return answer

    def _party(self, method: SiteMethod) -> Party:
        """The party of a method, which has passed the limits."""
        plan, label, algorithm, number = self.plan, method.label, method.algorithm, len(self._stores)
        store = open_store(self._folder / "stores" / f"{number:02d}")
        self._stores.append(store)
        run = run_of_method(self._folder.name, number, self._digest)

        def guard(payload: Any) -> None:
            with self._counting_refusals():
                method.guard(payload)

        party = Party(algorithm, method.problem, store, rounds=plan.rounds_of(label), method=plan.preset_of(label),
                      name=self._membership.name, limits=self._limits, journal=self._journal, lead=self._lead,
                      planned=self._planned(label, algorithm, method.part), policy=plan.policy,
                      metrics=method.metrics, secret=method.secret, guard=guard,
                      secure=secure_site(plan.privacy, self._membership, self._limits, run, store.folder,
                                         self._identity, algorithm))
        party.check()
        return party

    def _count_epsilons(self, labels: list[str]) -> None:
        """Write the privacy losses of the plan to the journal, before anything of it leaves."""
        epsilons = [party.epsilon if self.plan.policy.has_secret_noise else None for party in self._parties]
        total = math.fsum(math.inf if epsilon is None else epsilon for epsilon in epsilons)
        if reasons := reasons_to_refuse(self._limits, self._asked(Usage(epsilon=total))):
            raise refusal_of_limits(reasons, self._limits)
        for number, (label, epsilon) in enumerate(zip(labels, epsilons, strict=True)):
            run = run_of_method(self._folder.name, number, self._digest)
            if epsilon is not None and self._journal.latest("epsilon", run=run) is None:
                self._journal.append("epsilon", run=run, method=label, epsilon=epsilon, delta=DELTA,
                                     adjacency=ADJACENCY["records"])

    def preview(self) -> list[Departure]:
        """The arrays and numbers that would leave the site in the rounds, by name and size."""
        with self.plan.precision():
            return [departure._replace(message=f"{label}: {departure.message}")
                    for label, party in zip(self.plan.labels, self._parties, strict=False)  # of the first seed
                    for departure in party.preview()]

    @property
    def handlers(self) -> dict[str, Callable[[bytes | memoryview], bytes]]:
        """The name in the messages of each method and secure sum -> the function that answers them."""
        rounds = {run_of_method(self._folder.name, number, self._digest): self._with_precision(party.handle)
                  for number, party in enumerate(self._parties)}
        return rounds if self.sums is None else {**rounds, self.sums.run: self.sums.handle}

    def _with_precision(self, handle: Callable[[bytes | memoryview], bytes]) -> Callable[[bytes | memoryview], bytes]:
        def answer(message: bytes | memoryview) -> bytes:
            with self.plan.precision():
                return handle(message)

        return answer

    @property
    def journal(self) -> Journal:
        """The journal of the site, with the digest to which the budgets of its rows belong."""
        return self._journal

    def close(self) -> None:
        """Close the stores, and drop the states of the parties from memory."""
        for store in self._stores:
            store.close()
        self._stores, self._parties = [], []


def open_store(folder: Path) -> PartyStore:
    """The store of a party. The process of an earlier job may have it: its engine ends it after some seconds."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return PartyStore(folder)
        except RunningError as error:
            if time.monotonic() > end:
                raise Refusal(RefusalCode.BUSY, str(error)) from error
        time.sleep(_LOCK_PAUSE)


def part_of(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a message that must be there."""
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, dict):
        raise Refusal(RefusalCode.CONFLICT, f"the message has no {key}")
    return value

"""The files that people of a federation write: ``consortium.yaml`` of the lead, ``site.yaml`` of each site.

Both are read strictly: an unknown key, a value of another type or a missing key is an error with the file, the line,
the key and what is allowed.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.changes import Locations
from resolvent.comparisons.experiment.own_parts import is_own_part
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml
from resolvent.errors import InputError, quote
from resolvent.federation.protocol.kits import Engine
from resolvent.federation.protocol.limits import PROFILES, Limits
from resolvent.tables.cells import CellRules, Codes
from resolvent.tables.table_options import cell_rules

_Settings = TypeVar("_Settings")
# A name becomes a folder, the common name of a certificate and a name of the engine.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_MAX_HOST_LENGTH = 253
_RESERVED_NAMES = frozenset({"server", "lead", "authority"})  # participants, and the folder of the keys


@dataclass(frozen=True, kw_only=True)
class Consortium:
    """Who takes part in a federation, and where its server is.

    Attributes:
        name: name of the federation: letters, digits, - and _.
        host: name or address of the server, as the sites and the lead reach it; over Flower the name of the SuperLink
            in the lead's configuration of Flower, as in ``flwr run . NAME``.
        port: TCP port of the server; all connections go to it. Not used over Flower.
        sites: names of the sites. The name of a site is the name of its party in results.
        lead: e-mail address of the person who may start experiments.
        engine: ``nvflare`` (NVIDIA FLARE) or ``flower``.
        members: e-mail addresses of persons who may look at runs, and may not start one.

    Raises:
        InputError: a name, an address or the port is not valid, or there are fewer than two sites.
    """

    name: str
    host: str
    sites: tuple[str, ...]
    lead: str = ""
    engine: Engine = "nvflare"
    port: int = 8002
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, names in (("name", (self.name,)), ("sites", self.sites)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise InputError(f"{key}: {quote(name)} cannot be a name: use 1 to 40 letters, digits, - and _, "
                                     "beginning with a letter or a digit")
        if len(self.sites) < 2:
            raise InputError(f"sites: a federation has at least 2 sites, got {len(self.sites)}")
        if self.engine == "flower" and self.members:
            raise InputError("members: Flower knows no persons: remove the setting, or use engine: nvflare")
        persons = (self.lead, *self.members)
        for title, names in (("sites", self.sites), ("members", persons)):
            name, count = Counter(name.casefold() for name in names).most_common(1)[0]
            if count > 1:
                raise InputError(f"{title}: {quote(name)} is named twice: name it once")
        for name in self.sites:
            if name.casefold() in _RESERVED_NAMES:
                raise InputError(f"sites: {quote(name)} is the name of another participant, or of a "
                                 "folder beside the kits: choose another")
        for key, address in zip(("lead", *("members" for _ in self.members)), persons, strict=True):
            if not re.fullmatch(r"[\w.+-]+@[\w-]+(\.[\w-]+)*", address):
                raise InputError(f"{key}: {quote(address)} is not an e-mail address, such as lead@example.org")
        if self.engine == "flower":
            if not _NAME.fullmatch(self.host):
                raise InputError(f"host: {quote(self.host)} cannot be the name of a SuperLink in Flower's settings")
        elif (not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", self.host)
                or len(self.host) > _MAX_HOST_LENGTH):
            raise InputError(f"host: {quote(self.host)} is not a host name or an IPv4 address, such as fed.example.org")
        if not 1 <= self.port <= 65535:
            raise InputError(f"port: {self.port} must lie in 1 to 65535")

    @property
    def address(self) -> str:
        """The address in the kits, see ``KitNote``."""
        return self.host if self.engine == "flower" else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Approval:
    """The plans that run without the decision of a person at the site; all others wait for one.

    Attributes:
        leads: names of the leads whose plans need no decision, such as lead@example.org.
        algorithms: the algorithms of such plans; None: all that the limits allow.
        labels: the labels of such plans; None: all that the limits allow.
        max_rounds: largest number of rounds of all methods and seeds of such a plan; None: any.
    """

    leads: tuple[str, ...] = ()
    algorithms: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    max_rounds: int | None = None

    def obstacles(self, lead: str, labels: Collection[str], algorithms: Collection[str], rounds: int) -> list[str]:
        """Why a plan waits for a decision; empty if it runs without one."""
        unknown = sorted({*algorithms} - {*(algorithms if self.algorithms is None else self.algorithms)})
        others = sorted({*labels} - {*(labels if self.labels is None else self.labels)})
        checks = {f"approval.leads does not have {lead}": lead not in self.leads,
                  f"approval.algorithms does not have {', '.join(unknown)}": bool(unknown),
                  f"approval.labels does not have {', '.join(others)}": bool(others),
                  f"{rounds} rounds are more than approval.max_rounds {self.max_rounds}":
                      self.max_rounds is not None and rounds > self.max_rounds}
        return [reason for reason, is_obstacle in checks.items() if is_obstacle]


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """A site's table and what the site allows.

    Attributes:
        table: the site's table: a .csv, .csv.gz, .tsv or .parquet file with a row per sample. A relative path begins at
            the folder of this file.
        columns: name of a column in the federation -> its name at this site, for columns whose names differ.
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: character encoding of a text file, such as utf-8 or cp1252.
        missing: cells that stand for a missing value at this site, such as ['?', -999], beside empty ones and words
            such as NA; or column -> such a list.
        text: columns that are categories whatever their values look like, such as codes.
        validation: share of the rows with which methods and settings are chosen. The site decides it: the share of an
            experiment is a wish.
        test: share of the rows that judge the methods. The site decides it, too.
        models: models of the user's own, ``module:function``, that an experiment may name. They are code: the site
            installs them, or has the module in the folder of this file.
        profile: the limits: open for rows that are public, clinic for those of patients, strict if replies must also
            stay secret and every lead has a budget.
        limits: what the site allows, where it differs from the profile; an experiment beyond it is refused at the site.
        approval: the plans that run without a decision of a person here: leads, algorithms, labels, max_rounds. With {}
            there are none. Without this setting all plans run that are signed and within the limits.
        notify: a command that ``resolvent site start`` runs when a plan waits for a decision, such as ``mail -s plan
            data@example.org``; the plan is its standard input. It runs without a shell.
        folder: the folder of this file; ``read_site`` sets it.

    Raises:
        InputError: ``decimal`` or a share is not valid, or two columns have the same name at the site.
    """

    table: str
    columns: dict[str, str] | None = None
    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"
    missing: Codes | dict[str, Codes] | None = None
    text: tuple[str, ...] = ()
    validation: float = 0.2
    test: float = 0.2
    models: tuple[str, ...] = ()
    profile: Literal["open", "clinic", "strict"] = "clinic"
    limits: Limits = field(default_factory=Limits)
    approval: Approval | None = None
    notify: str = ""
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.decimal not in ("auto", ".", ","):
            raise InputError(f"decimal: {quote(self.decimal)} is not one of auto, '.' and ','")
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise InputError(f"test: validation {self.validation} and test {self.test} are shares of the rows: they "
                             "must not be negative, and must sum to less than 1")
        for model in self.models:
            if not is_own_part(model):
                raise InputError(f"models: {quote(model)} is not module:function: models of the library are allowed "
                                 "without being named")
        name, count = Counter((self.columns or {}).values()).most_common(1)[0] if self.columns else ("", 0)
        if count > 1:
            raise InputError(f"columns: {quote(name)} stands for two columns: name it once")

    @property
    def cells(self) -> CellRules:
        """What the cells of the table mean, by the names of its columns at this site."""
        return cell_rules(self.missing, self.text)


def read_consortium(path: Path) -> Consortium:
    """Read ``consortium.yaml``.

    Raises:
        InputError: the file is absent or wrong; the message has the file, the line and the key.
    """
    return _read(path, lambda settings: _bound(Consortium, settings))


def read_site(path: Path) -> SiteFile:
    """Read ``site.yaml``; its table has an absolute path.

    Raises:
        InputError: the file is absent or wrong; the message has the file, the line and the key.
    """
    folder = path.parent.resolve()

    def build(settings: Mapping[str, Any]) -> SiteFile:
        plain = dict(settings)
        profile = PROFILES.get(str(plain.get("profile", "clinic")), Limits())  # SiteFile refuses an unknown one
        changes = plain.pop("limits", None) or {}
        limits = _bound(Limits, profile.changes("clinic") | changes if isinstance(changes, dict) else changes, "limits")
        rule = _bound(Approval, plain.pop("approval") or {}, "approval") if "approval" in plain else None
        site = _bound(SiteFile, plain, limits=limits, approval=rule, folder=folder)
        return replace(site, table=str((folder / site.table).resolve()))

    return _read(path, build)


def _bound(kind: Callable[..., _Settings], settings: Any, path: str = "", **supplied: Any) -> _Settings:
    """A dataclass from checked settings; an error starts with the path of the key."""
    bound = bind(kind, settings, path=path, supplied=frozenset(supplied))
    try:
        return kind(**bound.values, **supplied)
    except InputError as error:
        separator = "." if str(error).partition(":")[0].isidentifier() else ": "
        raise InputError(f"{path}{separator}{error}".lstrip(".: ")) from error


def _read(path: Path, build: Callable[[Mapping[str, Any]], _Settings]) -> _Settings:
    settings = read_yaml(read_text(path), str(path))
    if not isinstance(settings, Mapping):
        raise InputError(f"{path}:1: expected a mapping of settings")
    try:
        return build(settings)
    except InputError as error:
        raise InputError(f"{Locations(str(path), settings, {})(str(error))}: {error}") from error

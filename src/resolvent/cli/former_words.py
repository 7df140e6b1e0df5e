"""Words of the command line until version 0.2: for one release they do what they did, and the present ones are printed.

Whatever is not among them is left as it is, and judged by the parser.
"""

_MODEL = ("predict", "evaluate", "calibrate", "explain", "refit")
_OF_MODEL = {**{name: name for name in ("separator", "decimal", "encoding", "class_weight", "kind")},
             "raw": "calibration", "before_refit": "refit"}
# Options that are now settings, by command.
_SETTINGS = {
    "run": {name: name for name in ("seed", "seeds", "folds", "scheduler")},
    "tune": {name: f"search.{name}" for name in ("strategy", "trials", "rounds")},
    "regress": {**{name: f"regression.{name}" for name in ("errors", "level", "l1", "l2", "offset", "exposure",
                                                            "reference")},
                **{name: f"data.{name}" for name in ("separator", "decimal", "encoding")}},
    "survival": {name: f"survival.{name}" for name in ("time", "event", "by", "entry")},
    "federate": {name: f"federation.{name}" for name in
                 ("quorum", "grace", "deadline", "retries", "lost_state", "engine")},
    "compare": {"target": "target", "reference": "reference"}, "lead": {"engine": "federation.engine"},
    **dict.fromkeys((*_MODEL, "model"), _OF_MODEL),
}
_FLAGS = ("raw", "before_refit")
_LEAD = {"new": "kits", "start": "serve", "verify": "card"}
_MOVED = {
    "reproduce": "the papers' figures are not part of the package: run them in a clone of the repository, with "
                 "`python -m experiments NAME`",
    "federation services": "the page docs/federation-operations.md of the documentation has units of systemd, the "
                           "rotation of logs and a compose file to copy",
}


def present_words(arguments: list[str]) -> list[str]:
    """The same command in present words.

    Raises:
        InputError: what the command did is not a part of the package any more.

    >>> present_words(["predict", "runs/mine", "new.csv", "--site", "Essen"])
    ['model', 'predict', 'runs/mine', 'new.csv', '--site', 'Essen']
    >>> present_words(["party", "start", "--kit", "kit", "--site", "site.yaml"])
    ['site', 'start', 'kit', 'site.yaml']
    """
    if not arguments:
        return arguments
    word, action = arguments[0], " ".join(arguments[:2])
    for moved in (word, action):
        if moved in _MOVED:
            from resolvent.errors import InputError  # imports JAX, which help does not need

            raise InputError(_MOVED[moved])
    words = _Words(arguments[1:])
    words.rename_settings(_SETTINGS.get(word, {}))
    for name in ("reason", "days"):
        words.place(name)
    if "json" in words.options and word not in ("site", "lead"):
        words.rename("json", "format")
        words.options["format"] = [["json"]]
    if "calibrate" in (word, *words.positional[:1]):
        _rename_goal(words)
    if word in ("lead", "model", "refit", "federate"):
        words.place("kit")
    if word in _MODEL:
        return ["model", word, *words.all()]
    if word == "report":
        return ["show", *words.all(), "--redraw"]
    if word == "paper":
        words.options.setdefault("out", [["paper"]])
        words.rename("out", "paper")
        return ["compare", *words.all()]
    if word == "federate":
        if words.options.pop("secure", None):
            words.options.setdefault("set", []).append(["privacy={secure_sums: true}"])
        return ["lead", "start", *words.all()]
    if [word, *words.positional[:1]] == ["site", "new"]:
        words.place("out")
    if word in ("party", "server", "federation", "site"):
        words.place("compare")
        if "attack" in words.options and words.options["attack"] == [[]]:
            words.rename("attack", "attack")
            words.options["attack"] = [words.take("seconds") or ["120"]]
        return _of_federation(word, words) if word != "site" or words.is_changed else arguments
    return [word, *words.all()] if words.is_changed else arguments


class _Words:
    """Arguments as positional words and options with their values; an option may be repeated."""

    def __init__(self, arguments: list[str]) -> None:
        self.positional: list[str] = []
        self.options: dict[str, list[list[str]]] = {}
        self.is_changed = False
        values = self.positional
        for argument in arguments:
            if argument.startswith("--") and argument != "--":
                name, mark, value = argument[2:].partition("=")
                self.options.setdefault(name.replace("-", "_"), []).append([value] if mark else [])
                values = self.options[name.replace("-", "_")][-1]
            else:
                values.append(argument)

    def rename(self, former: str, present: str) -> None:
        if former in self.options:
            self.is_changed = True
            self.options[present] = self.options.pop(former)

    def rename_settings(self, names: dict[str, str]) -> None:
        """Options that have become settings: ``--seed 3`` is ``--set seed=3``, ``--raw`` is ``calibration=false``."""
        for name, setting in names.items():
            mark = "." if setting == "regression.reference" else "="  # a level of a column
            for values in self.options.pop(name, []):
                self.is_changed = True
                if name in _FLAGS:
                    self.positional += values
                    values = ["false"]
                self.options.setdefault("set", []).append([f"{setting}{mark}{value}" for value in values])

    def place(self, name: str) -> None:
        """An option that has become the last positional word."""
        if name in self.options:
            self.is_changed, self.positional = True, [*self.positional, *self.take(name)]

    def take(self, name: str) -> list[str]:
        """The values of an option, which becomes a positional word."""
        return [value for values in self.options.pop(name, []) for value in values]

    def all(self) -> list[str]:
        """The arguments: the positional words first."""
        return [*self.positional, *(word for name, groups in self.options.items() for values in groups
                                    for word in (f"--{name.replace('_', '-')}", *values))]


def _rename_goal(words: _Words) -> None:
    missed, alarm = words.take("cost_false_negative"), words.take("cost_false_positive")
    if missed or alarm:
        words.options["goal"] = [[f"cost={''.join(missed)}:{''.join(alarm)}"]]
    for name in ("sensitivity", "specificity"):
        for value in words.take(name):
            words.options["goal"] = [[f"{name}={value}"]]
    if positive := words.take("positive"):
        words.is_changed, words.options["goal"] = True, [[*positive, *words.take("goal")]]


def _of_federation(word: str, words: _Words) -> list[str]:
    """The words of a participant: what a verb needs is positional now."""
    action, *others = words.positional or [""]
    if word == "federation":
        words.positional = others
        words.place("kit")
        return ["lead", _LEAD.get(action, action), *words.all()]
    if word == "site":
        return [word, *words.all()]
    kit = words.take("kit")
    if word == "server" or action == "clean":
        words.positional = [*kit, *others]
        return ["lead", _LEAD.get(action, action), *words.all()]
    words.positional = [*kit, *words.take("table"), *words.take("site"), *words.take("experiment"), *others]
    return ["site", *([action] if action else []), *words.all()]

"""Named arrays and texts: their file, and the comparison of two of them."""

import fnmatch
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

FILE = Path(__file__).with_name("golden.npz")
CHANGES = Path(__file__).with_name("changes.yaml")
FIRST_WAY = "sequential"  # the other ways of a preset are compared with it where they agree to _SAME
_SAME = 1e-13
# Relative and absolute: of float64 values, and of what commands compute in float32 and write.
TOLERANCE = 1e-12
SINGLE_TOLERANCE = 1e-4
SINGLE = "files"


def write(path, values):
    """Write arrays (as float64) and texts; an array that agrees with that of the first way is stored once."""
    names, shapes, flat, texts = [], [], [], {}
    for name, value in sorted(values.items()):
        if isinstance(value, str):
            texts[name] = value
            continue
        first = values.get(_of_first_way(name))
        names.append(name)
        if first is not None and _difference(first, value, _SAME) is None:
            shapes.append("as first")
        else:
            shapes.append(",".join(map(str, value.shape)))
            flat.append(np.asarray(value, np.float64).ravel())
    np.savez_compressed(path, names=_packed(names), shapes=_packed(shapes), values=np.concatenate([np.zeros(0), *flat]),
                        text_names=_packed(texts), texts=_packed(texts.values()))


def read(path):
    """The arrays and texts of a file, by name."""
    with np.load(path) as file:
        texts = dict(zip(_unpacked(file["text_names"]), _unpacked(file["texts"]), strict=True))
        shapes = dict(zip(_unpacked(file["names"]), _unpacked(file["shapes"]), strict=True))
        flat, start, values = file["values"], 0, {}
    for name, text in shapes.items():
        if text != "as first":
            shape = tuple(map(int, filter(None, text.split(","))))
            values[name] = flat[start:start + int(np.prod(shape))].reshape(shape)
            start += int(np.prod(shape))
    return {**texts, **values,
            **{name: values[_of_first_way(name)] for name, text in shapes.items() if text == "as first"}}


def read_changes(path):
    """Patterns of names that are meant to differ -> why."""
    return {entry["arrays"]: entry["why"] for entry in yaml.safe_load(path.read_text("utf-8")) or []}


@dataclass(frozen=True)
class Report:
    """The differences of two sets of arrays.

    Attributes:
        failures: a line for each difference that no change explains, and for each change that explains nothing.
        changed: a line for each difference on purpose.
        compared: how many arrays and texts were compared.
    """

    failures: list[str]
    changed: list[str]
    compared: int

    def lines(self):
        return [*self.failures, *(f"on purpose: {line}" for line in self.changed),
                f"{self.compared} compared, {len(self.failures)} failures, {len(self.changed)} changed on purpose"]


def compare(expected, found, changes, *, is_complete=True):
    """Compare found values with the expected ones.

    Args:
        changes: pattern of names -> why they differ.
        is_complete: whether all parts were run, so that a change without a difference is a failure.
    """
    failures, changed, used = [], [], set()
    names = sorted({*expected, *found})
    for name in names:
        difference = _entry_difference(name, expected.get(name), found.get(name))
        if difference is None:
            continue
        patterns = [pattern for pattern in changes if fnmatch.fnmatchcase(name, pattern)]
        used.update(patterns)
        if patterns:
            changed.append(f"{name}: {difference} ({changes[patterns[0]]})")
        else:
            failures.append(f"{name}: {difference}")
    if is_complete:
        failures += [f"{CHANGES.name}: {pattern}: nothing of this name differs: remove the entry"
                     for pattern in changes if pattern not in used]
    return Report(failures, changed, len(names))


def _entry_difference(name, expected, found):
    if expected is None:
        return "not in the file: record it"
    if found is None:
        return "missing"
    if isinstance(expected, str) or isinstance(found, str):
        texts = [value if isinstance(value, str) else f"an array {value.shape}" for value in (expected, found)]
        return None if texts[0] == texts[1] else f"{texts[0]!r} is now {texts[1]!r}"
    return _difference(expected, np.asarray(found, np.float64),
                       SINGLE_TOLERANCE if name.split("/")[0] == SINGLE else TOLERANCE)


def _difference(expected, found, tolerance):
    """The largest difference in words; None if all values agree to a relative or absolute tolerance."""
    if expected.shape != found.shape:
        return f"shape {expected.shape} is now {found.shape}"
    if np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    unequal = ~((expected == found) | (np.isnan(expected) & np.isnan(found)))
    with np.errstate(invalid="ignore"):
        distance = np.where(unequal, np.abs(np.asarray(found, np.float64) - expected), 0.0)
    if not np.isfinite(distance).all():
        return "other entries are finite"
    return f"largest difference {distance.max():.3g}, where values are up to {np.nanmax(np.abs(expected)):.3g}"


def _of_first_way(name):
    """The name of the same array in the first way: PRESET/WAY/ARRAY."""
    parts = name.split("/", 2)
    other = "/".join([parts[0], FIRST_WAY, *parts[2:]])
    return None if len(parts) < 3 or other == name else other


def _packed(texts):
    return np.frombuffer("\0".join(texts).encode(), np.uint8)


def _unpacked(packed):
    text = packed.tobytes().decode()
    return text.split("\0") if text else []

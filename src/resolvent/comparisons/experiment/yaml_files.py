"""YAML: reading with the line of an error, writing with comments, and the files that the package ships."""

from collections.abc import Mapping
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from resolvent.comparisons.experiment.binding import Bound, parameters
from resolvent.comparisons.experiment.yaml_checks import MAX_FILE_SIZE, check_yaml, reported
from resolvent.errors import InputError, quote, shorten


def shipped_files(package: str, folder: str) -> dict[str, str]:
    """The YAML files in a folder of a package: text by name, without the ending."""
    files = (resources.files(package) / folder).iterdir()
    texts = {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}
    return {name: texts[name].read_text(encoding="utf-8") for name in sorted(texts)}


def read_text(path: Path) -> str:
    """The text of a file that a person has written; of one that is too large for ``read_yaml``, the beginning."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE_SIZE + 1)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"there is no file {shorten(path)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:1: the file is not text in UTF-8: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_yaml(text: str, source: str) -> Any:
    """The content of a YAML text that a person has written, with the line of each key.

    Raises:
        InputError: it is not YAML, or too large; the message has the line.
    """
    try:
        check_yaml(text, lambda line: f"{source}:{line}")
        return YAML().load(text)
    except InputError:
        raise
    except Exception as error:
        raise reported(error, text, source) from error


def read_value(text: str, source: str) -> Any:
    """A YAML value on one line, as plain Python data."""
    try:
        check_yaml(text, lambda line: source)
        return YAML(typ="safe", pure=True).load(text)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{source}: {quote(text)} is not a YAML value") from error


def write_yaml(settings: Mapping[str, Any]) -> str:
    """Settings as the text of an experiment file, with a line for each key."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 1_000_000  # no folding: the comment of a key follows its value on one line
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    yaml.dump(settings, text)
    return text.getvalue()


def with_help(bound: Bound) -> CommentedMap:
    """The settings of a bound function, each with its help as a comment."""
    result = CommentedMap()
    if bound.name is not None:
        result["name"] = bound.name
    known, settings = parameters(bound.function), bound.settings()
    for key, setting in settings.items():
        if key == "name" and bound.name is not None:
            continue
        part = bound.parts.get(key)
        if isinstance(part, dict):
            result[key] = CommentedMap((label, with_help(p)) for label, p in part.items())
        else:
            result[key] = setting if part is None else with_help(part)
        if known[key].help:
            result.yaml_add_eol_comment(known[key].help, key)
    return result

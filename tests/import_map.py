"""Which tests a change concerns: a map from every file to the files that it imports or reads.

``RESOLVENT_BASE`` names the commit with which the working tree is compared. A file of tests then runs if it, or a file
that it needs, differs from that commit; everything runs if the variable is not set, if git does not know the commit,
and at night. A test with the mark ``when_changed`` is slow and covers little that is not tested elsewhere: it runs only
if such a change is known, and at night.

A file needs what its import statements name, at the top, in functions and in programs that it passes to ``python -c``;
modules and files of the repository that its strings name; and the ``conftest.py`` of its folders. The packages of a
module are imported with it. Two kinds of names are looked up where they are used: ``rv.fedavg`` needs the module that
defines the preset, but not all presets. Another file than Python's, such as a template, counts to the Python files of
its folder, or of the next one above that has any. A page needs what its examples import.

    python tests/import_map.py federation    # prints federation=true if the change concerns its tests, or =false
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "src/resolvent/__init__.py"
PUBLIC = "src/resolvent/api.py"
PRESETS = "src/resolvent/algorithms/presets/__init__.py"
# Folders that a module can be imported from, beside the folder of the file; the last is that of the repository.
_SOURCES = ("src", "tests", "tests/algorithms", "")
_EVERYTHING = ("pyproject.toml", "conftest.py")
TESTS = ("tests/", "experiments/tests/")
_IMPORT = re.compile(r"(?:^|[\"';])[ \t]*((?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n\"';]+))"
                     r"|import[ \t]+[^\n\"';(]+)", re.MULTILINE)
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:.*\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_USED_NAME = re.compile(r"\b(?:rv|resolvent)\.([A-Za-z]\w*)")
_WHOLE_PACKAGE = ("rv.__file__", "rv.__path__", "resolvent.__file__", "import_module(f\"resolvent.")
_STRING = re.compile(r"[\"']([\w.][\w./-]*)[\"']")


class ImportMap:
    """The files of a repository and what each of them needs.

    Attributes:
        root: the folder of the repository.
        files: all files, as paths relative to the folder; also those that were removed.
    """

    def __init__(self, root, files):
        self.root, self.files = Path(root), {*files}
        self.tops = {path.split("/")[0] for path in self.files}
        self._needed = cache(self._find_needed)
        self._files_of = cache(self._find_files)
        self._below = cache(self._list_below)

    def closure(self, path):
        """This file and all that it needs, directly or through others."""
        return reached([path], self._needed)

    def affected(self, changed):
        """The files that need one of these files, and these files themselves."""
        users = {}
        for path in self.files:
            for needed in self._needed(path):
                users.setdefault(needed, []).append(path)
        return reached(self._touched(changed), lambda path: users.get(path, ()))

    def _touched(self, changed):
        """The changed files, and the Python files that read those of another kind."""
        touched = {*changed}
        for path in changed:
            folder = Path(path).parent
            if not path.endswith((".py", ".md")):
                while folder != Path() and not self._pythons.get(folder.as_posix(), ()):
                    folder = folder.parent
                touched.update(self._pythons.get(folder.as_posix(), ()))
        return touched

    @cached_property
    def _pythons(self):
        """Folder -> its Python files."""
        folders = {}
        for path in self.files:
            if path.endswith(".py"):
                folders.setdefault(path.rpartition("/")[0], []).append(path)
        return folders

    def _text(self, path):
        return (self.root / path).read_text("utf-8")

    def _find_needed(self, path):
        is_read = path.endswith((".py", ".md")) and (self.root / path).is_file()
        if not is_read or path == "tests/import_map.py":  # this file names what it does not need
            return set()
        needed = set(self._imports(path))
        if path.startswith(TESTS):
            needed.update(_EVERYTHING)
            needed.update(f"{folder.as_posix()}/conftest.py" for folder in Path(path).parents)
        if path.endswith(".py"):
            needed.update(self._named(path))
        return needed & self.files

    def _imports(self, path):
        """The files of the modules that a file imports."""
        text = self._text(path)
        if path in (PUBLIC, PRESETS):  # their names are looked up where they are used
            return
        folder = path.rpartition("/")[0]
        for module, name in imported(text):
            if module in ("resolvent", "resolvent.algorithms.presets") and name in self._public:
                yield from self._files_of_public(name)
            else:
                yield from self._files_of(module, folder)
                yield from self._files_of(f"{module}.{name}", folder) if name else ()
        if "resolvent as rv" in text or "import resolvent\n" in text:
            for name in {*_USED_NAME.findall(text)}:
                yield from self._files_of_public(name)

    def _find_files(self, module, folder="src"):
        """The file of a module, then those of its packages; none if it is not of this repository."""
        parts = module.split(".")
        for source in (*_SOURCES, folder):
            stems = ["/".join([*filter(None, [source]), *parts[:i]]) for i in range(len(parts), 0, -1)]
            files = [file for file in (f"{stems[0]}.py", *(f"{stem}/__init__.py" for stem in stems))
                     if file in self.files]
            if files and files[0].startswith(stems[0]):
                presets = imported(self._text(PRESETS)) if files[0] == PRESETS else []
                return [*files, *(file for preset, name in presets if name == "*" for file in self._files_of(preset))]
        return []

    def _files_of_public(self, name):
        """The files that define a name of ``import resolvent``: a namespace, a function of the API, or a preset."""
        if found := self._files_of(f"resolvent.{name}"):
            return found
        return [PUBLIC, *(file for module in self._public.get(name, ()) for file in self._files_of(module))]

    @cached_property
    def _public(self):
        """Name -> the modules that have it, for all names that the API imports."""
        names = {}
        if PUBLIC not in self.files:
            return names
        later = re.findall(r"\"(\w+)\": \"(resolvent\.[\w.]+)\"", self._text(PACKAGE))
        explicit = [(module, name) for module, name in imported(self._text(PUBLIC)) if name != "*"]
        defined = [(module, name) for module, star in imported(self._text(PRESETS)) if star == "*"
                   for name in re.findall(r"^def (\w+)", self._text(self._files_of(module)[0]), re.MULTILINE)]
        for module, name in [*explicit, *defined, *((module, name) for name, module in later)]:
            names.setdefault(name, []).append(module)
        return names

    def _named(self, path):
        """The files that the strings of a file name: modules, and paths from the repository or from its folder."""
        text = self._text(path)
        if path == PACKAGE:  # it imports what is used
            return
        if any(words in text for words in _WHOLE_PACKAGE):
            yield from self._below("src/resolvent")
        folder = path.rpartition("/")[0]
        for string in {*_STRING.findall(text)}:
            if string.split("/")[0] in self.tops and string not in ("tests", "experiments"):
                yield from [string] if string in self.files else self._below(string)
            elif "/" not in string:
                yield from [f"{folder}/{string}"] if string.endswith(".py") else self._files_of(string)

    def _list_below(self, folder):
        return [path for path in self.files if path.startswith(f"{folder.rstrip('/')}/")]


def reached(first, following):
    """These items and all that follow from them."""
    found, waiting = set(), [*first]
    while waiting:
        if (item := waiting.pop()) not in found:
            found.add(item)
            waiting += following(item)
    return found


def imported(text):
    """(module, name) of every import statement in a text; the name is empty for ``import module``."""
    pairs = []
    for statement in _IMPORT.findall(_FOR_TYPES.sub("", text)):
        try:
            nodes = ast.parse(textwrap.dedent(statement).split("#")[0] if "(" not in statement else statement).body
        except SyntaxError:  # a sentence that begins with the word
            continue
        for node in nodes:
            if isinstance(node, ast.Import):
                pairs += [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                pairs += [(node.module, alias.name) for alias in node.names]
    return pairs


def git(*arguments, root=ROOT):
    """The lines that git prints; None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.splitlines()


def changed_files(root=ROOT):
    """The files that differ from the base, as paths relative to the repository; None if that is not known."""
    base = os.environ.get("RESOLVENT_BASE")
    if not base or "RESOLVENT_NIGHTLY" in os.environ:
        return None
    differing = git("diff", "--name-only", "--no-renames", "--merge-base", base, root=root)
    added = git("ls-files", "--others", "--exclude-standard", root=root)
    return None if differing is None or added is None else [*differing, *added]


def affected_files(root=ROOT):
    """The files that differ from the base, and those that need them; None if that is not known."""
    changed = changed_files(root)
    if changed is None:
        return None
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", root=root)
    return ImportMap(root, [*listed, *changed]).affected(changed)


def is_test(path):
    return re.fullmatch(r"(experiments/)?tests/(.*/)?test_\w+\.py", path) is not None


if __name__ == "__main__":
    AFFECTED = affected_files()
    IS_CONCERNED = AFFECTED is None or any(path.startswith(f"tests/{sys.argv[1]}/") and is_test(path)
                                           for path in AFFECTED)
    print(f"{sys.argv[1]}={str(IS_CONCERNED).lower()}")

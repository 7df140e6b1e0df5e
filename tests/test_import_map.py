"""Which tests a change concerns; everything runs if the change is not known."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import import_map
from import_map import ImportMap, imported

FILES = {
    "pyproject.toml": "",
    "src/resolvent/__init__.py": 'if TYPE_CHECKING:\n    from resolvent.api import *\n\n'
                                 '_LATER = {"check": "resolvent.tools.check"}\n',
    "src/resolvent/api.py": "from resolvent.algorithms.presets import *\nfrom resolvent.run import simulate\n",
    "src/resolvent/algorithms/presets/__init__.py": "from resolvent.algorithms.presets.means import *\n"
                                                    "from resolvent.algorithms.presets.medians import *\n",
    "src/resolvent/algorithms/presets/means.py": "import resolvent.bottom\ndef fedavg(): pass\n",
    "src/resolvent/algorithms/presets/medians.py": "def rfa():\n    from resolvent.run import simulate\n",
    "src/resolvent/run.py": "from resolvent import middle\n",
    "src/resolvent/middle.py": "from resolvent.bottom import (\n    bottom,  # at the end of the chain\n)\n",
    "src/resolvent/bottom.py": "",
    "src/resolvent/alone.py": '"""A sentence that begins\nfrom here imports nothing."""\n',
    "src/resolvent/tools/__init__.py": "",
    "src/resolvent/tools/check.py": 'FILE = Path(__file__).parent / "page.html.jinja"\n',
    "src/resolvent/tools/pages/page.html.jinja": "",
    "src/resolvent/losses.py": "from resolvent.alone import *\n",
    "docs/page.md": "```python\nimport resolvent as rv\nrv.rfa()\n```\n",
    "docs/hooks.py": "import resolvent.alone\n",
    "tests/conftest.py": "import helpers_of_all\n",
    "tests/helpers_of_all.py": "",
    "tests/run/conftest.py": "from resolvent.alone import x\n",
    "tests/run/helper.py": "import resolvent.middle\n",
    "tests/run/on_devices.py": "import resolvent.tools.check\n",
    "tests/run/test_by_helper.py": "from helper import x\n",
    "tests/run/test_process.py": 'RUN = [sys.executable, FOLDER / "on_devices.py"]\n',
    "tests/run/test_command.py": 'RUN = [sys.executable, "-c", "import sys; import resolvent.bottom"]\n',
    "tests/run/test_module.py": 'RUN = [sys.executable, "-m", "resolvent.tools.check"]\n',
    "tests/test_mean.py": "import resolvent as rv\nrv.fedavg()\n",
    "tests/test_median.py": "import resolvent as rv\nrv.rfa()\n",
    "tests/test_later.py": "import resolvent as rv\nrv.check()\n",
    "tests/test_namespace.py": "import resolvent as rv\nrv.losses\n",
    "tests/test_all_files.py": "import resolvent\nROOT = resolvent.__file__\n",
    "tests/test_pages.py": 'PAGES = ROOT / "docs"\n',
    "tests/test_one_preset.py": "from resolvent.algorithms.presets import fedavg\n",
    "tests/test_presets.py": "from resolvent.algorithms import presets\n",
    "tests/test_nothing.py": "",
}
BY_BOTTOM = ["run/test_by_helper.py", "run/test_command.py", "test_mean.py", "test_median.py", "test_one_preset.py",
             "test_pages.py", "test_presets.py"]
BY_CHECK = ["run/test_module.py", "run/test_process.py", "test_later.py"]
IN_RUN = ["run/test_by_helper.py", "run/test_command.py", "run/test_module.py", "run/test_process.py"]


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return ImportMap(tmp_path, [*FILES])


@pytest.mark.parametrize(("changed", "selected"), [
    ("src/resolvent/bottom.py", BY_BOTTOM),  # three imports below rv.rfa, which imports it in a function
    ("src/resolvent/run.py", ["test_median.py", "test_pages.py", "test_presets.py"]),
    # Another preset of the API does not concern the tests of the median.
    ("src/resolvent/algorithms/presets/means.py", ["test_mean.py", "test_one_preset.py", "test_presets.py"]),
    ("src/resolvent/algorithms/presets/medians.py", ["test_median.py", "test_pages.py", "test_presets.py"]),
    ("src/resolvent/tools/check.py", BY_CHECK),
    ("src/resolvent/tools/pages/page.html.jinja", BY_CHECK),  # the template counts to the modules of its folder
    ("src/resolvent/tools/__init__.py", BY_CHECK),
    ("src/resolvent/alone.py", [*IN_RUN, "test_namespace.py", "test_pages.py"]),
    ("docs/page.md", ["test_pages.py"]),
    ("docs/hooks.py", ["test_pages.py"]),
    ("docs/removed.md", ["test_pages.py"]),
    ("tests/run/helper.py", ["run/test_by_helper.py"]),
    ("tests/run/conftest.py", IN_RUN),
    ("tests/test_nothing.py", ["test_nothing.py"]),
    ("benchmarks/zoo.py", []),
])
def test_a_change_selects_the_tests_that_need_it_and_no_other(changed, selected, repository):
    found = ImportMap(repository.root, {*FILES, changed}).affected([changed])
    if changed.startswith("src/"):
        selected = [*selected, "test_all_files.py"]
    assert sorted(path for path in found if import_map.is_test(path)) == sorted(f"tests/{name}" for name in selected)


@pytest.mark.parametrize("changed", ["pyproject.toml", "tests/conftest.py", "tests/helpers_of_all.py"])
def test_what_all_tests_need_selects_all(changed, repository):
    found = repository.affected([changed])
    assert {path for path in found if import_map.is_test(path)} == {path for path in FILES if import_map.is_test(path)}


def test_a_removed_file_selects_those_that_still_import_it(repository):
    (repository.root / "src/resolvent/bottom.py").unlink()
    assert "tests/test_mean.py" in repository.affected(["src/resolvent/bottom.py"])


def test_import_statements_are_read_and_sentences_are_not():
    text = ("from a.b import (c,\n    d)\nimport e, f.g as h  # two\n    from i import *\nfrom time to time\n"
            "if TYPE_CHECKING:\n    from types_only import T\n\nx = 'import j; from k import l'\n")
    assert imported(text) == [("a.b", "c"), ("a.b", "d"), ("e", ""), ("f.g", ""), ("i", "*"), ("j", ""), ("k", "l")]


def test_the_map_of_this_repository():
    """Some long chains of today: the map is complete, or nearly nothing would be found, and not everything."""
    listed = import_map.git("ls-files")
    if listed is None:
        pytest.skip("not a clone: git does not list the files")
    began = time.process_time()
    everything = ImportMap(import_map.ROOT, listed)

    def folders_of(path):
        assert path in everything.files
        return {found.split("/")[1] for found in everything.affected([path]) if import_map.is_test(found)}

    assert {"math", "algorithms", "simulator", "comparisons", "federation", "docs"} <= folders_of(
        "src/resolvent/math/tree.py")
    wire = folders_of("src/resolvent/federation/protocol/wire.py")
    assert "federation" in wire
    assert not {"math", "xla", "theory", "data", "problem"} & wire
    assert time.process_time() - began < 6  # two maps and 1,500 files; one takes about a second
    found = everything.affected(["tests/math/test_tree.py"])
    assert {path for path in found if import_map.is_test(path)} == {
        "tests/math/test_tree.py", "tests/test_import_map.py", "tests/test_mutants.py",
        "tests/federation/test_known_attacks.py"}  # it looks up tests by their names


def test_all_tests_run_if_the_change_is_not_known(monkeypatch):
    monkeypatch.delenv("RESOLVENT_NIGHTLY", raising=False)
    for base in ("", "0000000000000000000000000000000000000000", "no-such-branch"):
        monkeypatch.setenv("RESOLVENT_BASE", base)
        assert import_map.affected_files() is None


def test_changes_are_those_since_the_base_and_new_files(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True,
                       capture_output=True)

    def commit(name):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)

    monkeypatch.setenv("RESOLVENT_BASE", "main")
    monkeypatch.delenv("RESOLVENT_NIGHTLY", raising=False)
    git("init", "--initial-branch", "main")
    commit("first")
    git("checkout", "-b", "mine")
    commit("committed")
    git("checkout", "main")
    commit("of-others")
    git("checkout", "mine")
    (tmp_path / "new").touch()
    (tmp_path / "first").write_text("edited")
    assert sorted(import_map.changed_files(tmp_path)) == ["committed", "first", "new"]
    assert import_map.affected_files(tmp_path) == {"committed", "first", "new"}
    monkeypatch.setenv("RESOLVENT_NIGHTLY", "1")
    assert import_map.changed_files(tmp_path) is None


@pytest.mark.parametrize(("base", "expected"), [("HEAD~0", "false"), ("no-such-branch", "true")])
def test_the_command_says_whether_the_tests_of_a_folder_concern_the_change(base, expected, tmp_path):
    (tmp_path / "tests").mkdir()
    script = tmp_path / "tests" / "import_map.py"
    script.write_bytes(Path(import_map.__file__).read_bytes())
    for command in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "RESOLVENT_NIGHTLY"}
    done = subprocess.run([sys.executable, script, "federation"], check=True, capture_output=True, text=True,
                          env=environment | {"RESOLVENT_BASE": base})
    assert done.stdout == f"federation={expected}\n"

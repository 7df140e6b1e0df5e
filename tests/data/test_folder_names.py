"""Names of files and folders: too long ones, those that two names share, and places that are no files."""

import os
import tempfile
from pathlib import Path

import pytest

from resolvent.data.files.atomic_files import hidden_sibling
from resolvent.data.files.digests import DamagedFileError, read_sealed
from resolvent.data.files.folder_lock import check_names, locked, make_temporary_folder
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules
from resolvent.tables.table_files import check_exists
from resolvent.tables.text_formats import TextFormat
from resolvent.tables.text_tables import read_text_table


@pytest.mark.parametrize("name", ["n" * 300, "n" * 5000, "ä" * 130, "a\0b"])
def test_names_that_no_file_can_have_are_refused(name, tmp_path):
    for check in (lambda path: check_names(path), lambda path: locked(path).__enter__()):
        with pytest.raises(InputError, match=r"^the name '.* of a file or folder has .*: choose another name$"):
            check(tmp_path / name / "inner")
    check_names(tmp_path / ("n" * 255))


def test_helper_files_of_long_names_differ(tmp_path):
    helpers = {hidden_sibling(tmp_path / f"{'ü' * 110}{ending}", "partial") for ending in "abc"}
    assert len(helpers) == 3
    assert all(len(os.fsencode(path.name)) <= 255 for path in helpers)
    assert hidden_sibling(tmp_path / "run", "lock").name == ".run.lock"


def test_the_root_cannot_be_replaced():
    with pytest.raises(InputError, match="is the root of the file system"), locked(Path("/")):
        pass


def test_folders_and_pipes_are_named_as_such(tmp_path):
    (tmp_path / "x.csv").mkdir()
    os.mkfifo(tmp_path / "y.csv")
    for name, kind in (("x.csv", "a folder"), ("y.csv", "a pipe or a device")):
        with pytest.raises(InputError, match=f"{name}' is {kind}"):
            check_exists(tmp_path / name)
        with pytest.raises(DamagedFileError, match=r"is a (folder|pipe or a device), not a file: advice"):
            read_sealed(tmp_path / name, "advice")


def test_without_room_for_temporary_files_the_variable_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"temporary files cannot be written .* environment variable TMPDIR"):
        make_temporary_folder()


def test_a_header_of_more_than_131072_characters_is_read(tmp_path):
    names = ["site", "ill", *(f"ENSG{number:011d}.12" for number in range(9000))]
    rows = [[str(k % 2), str(k % 3 // 2), *map(str, range(9000))] for k in range(4)]
    (tmp_path / "genes.csv").write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
    frame = read_text_table(tmp_path / "genes.csv", TextFormat(), ("site", "ill"), CellRules(text={"site"}),
                            lambda column: True)
    assert list(frame.columns) == names
    assert frame.shape == (4, 9002)

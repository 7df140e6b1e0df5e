"""Commands that are given a folder which cannot be what they need: one line, and exit code 2."""

import os

import pytest

ROWS = "x,site,y\n1,a,u\n2,a,v\n3,b,u\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (("model", "predict", ".", "rows.csv"), ".: there is no finished run and no saved result"),
    (("model", "predict", "/", "rows.csv"), "/: there is no finished run and no saved result"),
    (("model", "evaluate", ".", "rows.csv"), ".: there is no finished run and no saved result"),
    (("model", "predict", "n" * 300, "rows.csv"), "of a file or folder has 300 bytes, and at most 255 are possible"),
    (("run", "digits", "--out", "/"), "/ is the root of the file system, which cannot be replaced"),
    (("run", "digits", "--out", "n" * 300), "of a file or folder has 300 bytes"),
    (("model", "predict", "damaged", "rows.csv", "--method", "A"), "there is no finished run and no saved result"),
    (("run", "mine.yaml"), "pipe.csv' is a pipe or a device, which cannot be read twice: name a file"),
])
def test_they_are_refused_on_one_line(call, tmp_path, arguments, message):
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "damaged" / "tree.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "mine.yaml").write_text("data: {table: pipe.csv, party: site, label: y}\nmodel: logistic\n"
                                        "solver: {name: SGD, learning_rate: 0.1}\nalgorithms: {A: local}\nrounds: 1\n")
    outcome = call(*arguments, cwd=tmp_path)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert outcome.err.count("\n") == 1

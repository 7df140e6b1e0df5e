"""Words of the command line until version 0.2 do what they did for one release, and name the present ones."""

import shlex

import pytest

from resolvent.cli.former_words import present_words
from resolvent.errors import InputError

CASES = """
predict runs/mine new.csv --site Essen => model predict runs/mine new.csv --site Essen
evaluate runs/mine new.csv --json --decimal , => model evaluate runs/mine new.csv --set decimal=, --format json
calibrate runs/mine --cost-false-negative 5 --cost-false-positive 1 => model calibrate runs/mine --goal cost=5:1
calibrate runs/mine --sensitivity=0.9 => model calibrate runs/mine --goal sensitivity=0.9
calibrate runs/mine --positive ill --goal cost=5:1 => model calibrate runs/mine --goal ill cost=5:1
model calibrate runs/mine --positive ill => model calibrate runs/mine --goal ill
model refit runs/mine --kit k --rounds 5 => model refit runs/mine k --rounds 5
refit runs/mine --rounds 5 => model refit runs/mine --rounds 5
run digits --seeds 5 --set rounds=3 => run digits --set rounds=3 --set seeds=5
run digits --rounds 5 => run digits --rounds 5
tune mine.yaml --trials 20 => tune mine.yaml --set search.trials=20
regress a.csv --errors robust => regress a.csv --set regression.errors=robust
survival a.csv --time days --by arm => survival a.csv --set survival.time=days --set survival.by=arm
regress a.csv --level 0.9 --reference w=A => regress a.csv --set regression.level=0.9 --set regression.reference.w=A
report runs/mine => show runs/mine --redraw
paper a=runs/a --out figures => compare a=runs/a --paper figures
paper runs/a => compare runs/a --paper paper
federation new consortium.yaml => lead kits consortium.yaml
federation revoke consortium.yaml celle --reason gone => lead revoke consortium.yaml celle gone
model predict a new.csv --raw --site Essen => model predict a new.csv --site Essen --set calibration=false
evaluate runs/mine --before-refit new.csv => model evaluate runs/mine new.csv --set refit=false
compare runs/a --paper p --reference alone => compare runs/a --paper p --set reference=alone
site reject k 3f9a --reason 'no consent' => site reject k 3f9a 'no consent'
lead start digits --rehearse --engine flower => lead start digits --rehearse --set federation.engine=flower
federation verify runs/hearts --kit kits/aachen => lead card runs/hearts kits/aachen
lead start mine.yaml --kit k --out a => lead start mine.yaml k --out a
site ledger k --compare old.sqlite => site ledger k old.sqlite
site check k s.yaml e.yaml --attack --seconds 9 => site check k s.yaml e.yaml --attack 9
server start --kit kits/server --live 8010 => lead serve kits/server --live 8010
server status --kit kits/server --format json => lead status kits/server --format json
party new --table a.csv --site mine.yaml => site new a.csv mine.yaml
site new a.csv --out mine.yaml => site new a.csv mine.yaml
party check --kit k --site s.yaml --experiment e.yaml --attack => site check k s.yaml e.yaml --attack 120
party start --kit k --site s.yaml => site start k s.yaml
party approve 3f9a --kit k => site approve k 3f9a
party clean --kit k --days 1 => lead clean k 1
federate digits --rehearse --quorum 2 => lead start digits --rehearse --set federation.quorum=2
"""


def test_every_former_word_has_a_present_one():
    wrong = []
    for line in CASES.strip().splitlines():
        former, expected = (shlex.split(side) for side in line.split(" => "))
        if (present := present_words(former)) != expected:
            wrong.append((line, shlex.join(present)))
    assert wrong == []


def test_what_has_left_the_package_names_its_place():
    for words, place in ((["reproduce", "fedplus-fig4"], "python -m experiments"),
                         (["federation", "services", "c.yaml"], "docs/federation-operations.md")):
        with pytest.raises(InputError, match=place):
            present_words(words)


def test_a_former_word_runs_and_prints_the_present_one(call, tmp_path):
    outcome = call("report", "nothing", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err.splitlines()[0] == "note: `resolvent report nothing` is now: resolvent show nothing --redraw"
    assert "no folder nothing" in outcome.err


def test_present_words_print_no_note(call, tmp_path):
    assert call("show", "digits", cwd=tmp_path).err == ""

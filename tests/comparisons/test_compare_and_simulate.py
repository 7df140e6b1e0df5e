"""``compare`` takes what ``simulate`` takes; where the data are and who is evaluated changes no number."""

import inspect

import numpy as np
import pandas as pd
import pytest

import resolvent as rv

ONE_RUN = {"algorithm", "checkpoint", "name"}  # a comparison has labels, and a folder for all


def test_compare_has_every_argument_of_simulate():
    """Also with the same default."""
    of_run, of_comparison = (inspect.signature(function).parameters for function in (rv.simulate, rv.compare))
    assert set(of_run) - set(of_comparison) == ONE_RUN
    assert {name for name in set(of_run) - ONE_RUN if of_run[name].default != of_comparison[name].default} == set()


@pytest.mark.nightly
def test_memory_changes_no_number_and_the_evaluated_parties_no_decision():
    data, solver = rv.datasets.digits(parties=6, seed=0), rv.SGD(0.1, batch_size=20)
    methods, model = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}, rv.models.logistic(64, 10)
    plain, host, three = (rv.compare(methods, model, data, rounds=3, seeds=2, progress=False, **arguments)
                          for arguments in ({}, {"memory": "host"}, {"evaluate_parties": 3}))
    pd.testing.assert_frame_equal(host.metrics, plain.metrics)
    pd.testing.assert_frame_equal(host.recommend(), plain.recommend())
    pd.testing.assert_frame_equal(three.recommend(), plain.recommend())
    of_three = three.metrics.query("metric == 'accuracy' and split == 'test' and round == 3")
    assert of_three.groupby(["method", "seed"])["party"].nunique().eq(3).all()
    keys = ["method", "round", "party", "split", "metric", "seed"]
    both = of_three.merge(plain.metrics, on=keys)
    assert len(both) == len(of_three)
    np.testing.assert_array_equal(both["value_x"], both["value_y"])


def test_more_evaluated_parties_than_there_are_is_refused():
    data, solver = rv.datasets.digits(parties=3, seed=0), rv.SGD(0.1)
    with pytest.raises(rv.InputError, match="evaluate_parties=4 must lie in 1 to 3, the number of parties"):
        rv.compare({"FedAvg": rv.fedavg(solver)}, rv.models.logistic(64, 10), data, rounds=1, evaluate_parties=4,
                   progress=False)

"""The time of a check."""

import time

import numpy as np
import pandas as pd
import pytest
from planted import SETTINGS, SITES

from resolvent.tables.checks.table_check import check_frame

N = 1_000_000


@pytest.mark.slow
@pytest.mark.nightly
def test_a_million_rows_of_30_columns_take_less_than_15_seconds_of_the_cpu():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(SITES, N), "ill": rng.choice(["no", "yes"], N),
                          **{f"number {i}": rng.normal(size=N) for i in range(18)},
                          **{f"count {i}": rng.integers(0, 100, N) for i in range(4)},
                          **{f"text {i}": rng.choice([f"level {k}" for k in range(20)], N) for i in range(6)}})
    start = time.process_time()
    assert not check_frame(frame, SETTINGS)[1]
    assert time.process_time() - start < 15

"""A user's script for type checkers: mypy, as part of ``make lint``, and ``make typed`` with the installed package.

Each mistake below has a comment that expects its error: a checker that does not report the mistake reports the comment.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnknownMemberType=false

from typing import assert_type

import resolvent as rv
from resolvent.codecs import TopK

solver = rv.SGD(0.1, batch_size=20, epochs=1)
algorithm = rv.fedprox(solver, mu=0.1)
assert_type(algorithm, rv.Algorithm)
compressed = rv.combinators.Compressed(algorithm, TopK(0.1))
result = rv.simulate(compressed, rv.models.logistic(64, 10), rv.datasets.digits(), rounds=2,
                     participation=rv.participation.Uniform(10))
assert_type(result, rv.Result)
comparison = rv.compare({"FedProx": algorithm, "FedAvg": rv.fedavg(solver)}, rv.models.logistic(64, 10),
                        rv.datasets.digits(), rounds=2, seeds=3)

rv.fedprox(solver, mew=0.1)  # type: ignore[call-arg]
rv.SGD(0.1, batchsize=20)  # type: ignore[call-arg]
rv.codecs.TopK(frction=0.1)  # type: ignore[call-arg]
rv.fedprx  # type: ignore[attr-defined]
rv.codecs.jax  # type: ignore[attr-defined]

"""Several labels for each image: is the digit even, large, and made of closed loops?"""

import numpy as np

import resolvent as rv

digits = rv.datasets.digits(parties=5, validation=0, test=0)
tags = np.array([[d % 2 == 0, d >= 5, d in (0, 6, 8, 9)] for d in range(10)], int)
x, y = zip(*(digits.party(k) for k in range(len(digits))), strict=True)
data = rv.FederatedData.from_arrays(x, [tags[labels] for labels in y], classes=["even", "large", "loops"])

model = rv.models.from_functions(rv.models.mlp(64, 3).init, rv.models.mlp(64, 3).apply, loss="multi_label")
result = rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=20)), model, data, rounds=20,
                     metrics=[rv.metrics.MultiLabelF1(), rv.metrics.ExactMatch()])
print(result.scores("test").mean(axis=1))
print(result.fitted().predict(data.party(0, "test")[0])[:5])

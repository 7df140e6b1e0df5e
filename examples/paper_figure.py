"""A figure for a paper

Five seeds, three methods, the width of a column and letters that are readable in print, by one call. All methods have
the same cohorts, minibatches and splits; each seed divides the digits among other parties. The other figures, the
tables and the tests: [from a run to a paper](research.md#7-from-a-comparison-to-a-paper).

Picture: test accuracy of three methods over the rounds with a band of one standard deviation over five seeds.
"""

import resolvent as rv


def digits(seed):
    return rv.datasets.digits(parties=10, classes_per_party=3, seed=seed)


solver = rv.SGD(0.1, batch_size=20)
methods = {"FedAvg": rv.fedavg(solver), "Scaffold": rv.scaffold(solver), "FedAvg+": rv.fedavg_plus(solver)}
comparison = rv.compare(methods, rv.models.logistic(64, 10), digits, rounds=40, seeds=5, evaluate_every=4,
                        progress=False)
figure = comparison.plot("curves", band="seeds")
figure.savefig("figure.pdf")

means = comparison.fairness().set_index("method")["mean"]
assert means["FedAvg+"] > means["FedAvg"]

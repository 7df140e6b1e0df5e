"""The messages of federations in one process: their kinds in order, and the arrays in them."""

import tempfile
from pathlib import Path

import numpy as np

import resolvent as rv
from federation.parts import Federation
from resolvent.federation.protocol.wire import decode
from resolvent.testing import example_participation, example_problem, example_solver


def _compressed(solver):
    return rv.combinators.CompressedMessages(
        rv.combinators.Compressed(rv.feddane(solver), rv.codecs.QSGD(4)), rv.codecs.TopK(k=3))


# One phase with states, two phases with codecs, personal models with replies that are refused.
ALGORITHMS = {
    "scaffold": rv.scaffold,
    "feddane, compressed": _compressed,
    "attacked": lambda solver: rv.attacked(rv.fedgeomed_plus(solver, lam=0.3), rv.attacks.NaN(), share=0.4),
}


def record():
    """The arrays of all messages, and one text for each federation: a line for each message."""
    values = {}
    for name, make in ALGORITHMS.items():
        lines = []
        with tempfile.TemporaryDirectory() as folder, Federation(
                make(example_solver()), example_problem(), Path(folder),
                participation=example_participation()) as federation:
            _listen(federation.transport.handlers, lines, values, name)
            federation.run()
        values[f"messages/{name}/order"] = "\n".join(lines)
    return values


def _listen(handlers, lines, values, name):
    """Record every message that the sites get and send."""
    def note(arrow, site, content):
        message = decode(content)
        prefix = f"messages/{name}/{len(lines):03d}"
        lines.append(f"{arrow} {site}: {message.kind}, round {message.round}, phase {message.phase}")
        values.update({f"{prefix} {arrow} {site} {message.kind}/{key}": np.array(array, np.float64)
                       for key, array in message.arrays.items()})

    def recorded(site, handler):
        def handle(content):
            note("to", site, content)
            reply = handler(content)
            note("from", site, reply)
            return reply
        return handle

    for site, handler in handlers.items():
        handlers[site] = recorded(site, handler)

"""The cost of a secure sum: CPU seconds and bytes of sites and server, compared with a plain sum and Flower's SecAgg+.

    python benchmarks/secure_sums.py --out benchmarks/secure_sums.json

Each setting is one phase in one process, without local work and without a network: what a site computes is the mean
over the sites. A plain phase encodes each reply of 32-bit floats, decodes it at the server and adds it. ``secure``:
more than two thirds of the sites must be in the sum, and in ``absent`` a tenth does not reply. ``all sites``: all must
be in it (threshold 1), so that a phase has no steps after the replies; also with integers of 32 bits. In the
environment of Flower the client's and the server's functions of SecAgg+ have the same vectors, with shares for all
sites; the bytes are those of its arrays and shares, without its messages. The minimum of the repeats is reported, in
alternation.
"""

import argparse
import importlib
import importlib.util
import math
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from records import as_json
from resolvent.federation.protocol.wire import Message, decode, encode
from resolvent.federation.secure.answers import MASKED
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.secure.rules import Sent, SumRules
from resolvent.federation.secure.server import SecureSum
from resolvent.federation.secure.site import SecureSite

RULES, ALL_SITES = SumRules(), SumRules(threshold=1)
FRACTIONS = {"<u8": 29, "<u4": 16}  # bits after the binary point; 32 bits need a smaller range


class Clock:
    """CPU seconds by title."""

    def __init__(self):
        self.seconds, self.bytes = {}, 0

    @contextmanager
    def measure(self, title):
        start = time.process_time()
        yield
        self.seconds[title] = self.seconds.get(title, 0.0) + time.process_time() - start


def plain_phase(vectors):
    """A phase in which the server sees the replies."""
    clock, total = Clock(), 0.0
    for vector in vectors:
        with clock.measure("site"):
            sent = encode(Message("reply", "run", arrays={"value": vector}))
        clock.bytes += len(sent)
        with clock.measure("server"):
            total = total + decode(sent).arrays["value"]
    return clock, total


class Sites:
    """Sites that have accepted each other's keys; a benchmark has several phases of one run."""

    def __init__(self, folder, count, rules=RULES):
        self.rules, self.names = rules, [f"site {k:03d}" for k in range(count)]
        identities = local_identities(self.names)
        self.sites = {name: SecureSite(name, "run", Path(folder) / name, identities[name], rules, self.names)
                      for name in self.names}
        self.cards = {name: site.card() for name, site in self.sites.items()}
        start = time.process_time()
        for site in self.sites.values():
            site.accept(self.cards)
        self.seconds_of_keys, self.phases = (time.process_time() - start) / count, 0

    def phase(self, vectors, absent=(), dtype="<u8"):
        """A phase with secure sums; the sites of ``absent`` do not reply."""
        scale, signed = 2.0**FRACTIONS[dtype], dtype.replace("u", "i")
        clock, position = Clock(), (self.phases, 0)
        self.phases += 1
        total = SecureSum("run", position, self.names, self.rules, self.cards)
        for name, vector in zip(self.names, vectors, strict=True):
            if name in absent:
                continue
            with clock.measure("site"):
                integers = np.rint(vector.astype(float) * scale).astype(signed).view(dtype)
                content = f"message {self.phases}"
                mask = self.sites[name].mask(position, self.names, Sent(content, content), len(vector), dtype)
                facts = {"shares": mask.shares, "commitment": mask.commitment}
                sent = encode(Message("reply", "run", *position, facts, {MASKED: integers + mask.values}))
            clock.bytes += len(sent)
            with clock.measure("server"):
                reply = decode(sent)
                total.add(name, reply.arrays[MASKED], reply.facts["shares"], reply.facts["commitment"], content)
        steps = () if total.needs_all else total.listed
        for name in steps:
            with clock.measure("site"):
                signature = self.sites[name].sign(position, total.listed)
            clock.bytes += len(signature)
            with clock.measure("server"):
                total.accept_signature(name, signature)
        revealed = {}
        for name in steps:
            with clock.measure("site"):
                revealed[name] = self.sites[name].reveal(position, total.listed, total.signatures,
                                                         total.shares_for(name))
            clock.bytes += len(encode(Message("revealed", "run", *position, revealed[name])))
        with clock.measure("server"):
            result = total.unmask(revealed).view(signed) / scale
        return clock, result


def secagg_phase(vectors):
    """The functions of Flower's SecAgg+ with shares for all clients, without drop-outs."""
    from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.ndarrays_arithmetic import (
        factor_extract,
        parameters_addition,
        parameters_mod,
        parameters_subtraction,
    )
    from flwr.common.secure_aggregation.quantization import dequantize
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # its package hides it
    clock, count = Clock(), len(vectors)
    settings = {Key.SAMPLE_NUMBER: count, Key.SHARE_NUMBER: count, Key.THRESHOLD: RULES.needed(count),
                Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: 2**22, Key.MOD_RANGE: 2**32, Key.MAX_WEIGHT: 1000.0}
    states, keys = [mod.SecAggPlusState() for _ in vectors], {}
    for k, state in enumerate(states):
        state.nid = k
        with clock.measure("site"):
            public = mod._setup(state, settings)
        keys[str(k)] = (public[Key.PUBLIC_KEY_1], public[Key.PUBLIC_KEY_2])
        clock.bytes += sum(map(len, keys[str(k)]))
    received = [([], []) for _ in states]
    for k, state in enumerate(states):
        with clock.measure("site"):
            shares = mod._share_keys(state, keys)
        for to, text in zip(shares[Key.DESTINATION_LIST], shares[Key.CIPHERTEXT_LIST], strict=True):
            received[to][0].append(k)
            received[to][1].append(text)
            clock.bytes += len(text)
    masked = None
    for state, vector, (sources, texts) in zip(states, vectors, received, strict=True):
        parameters = ndarrays_to_parameters([vector])
        with clock.measure("site"):
            reply = mod._collect_masked_vectors(
                state, {Key.CIPHERTEXT_LIST: texts, Key.SOURCE_LIST: sources}, 1000, parameters)
        clock.bytes += sum(map(len, reply[Key.MASKED_PARAMETERS]))
        with clock.measure("server"):
            arrays = [bytes_to_ndarray(data) for data in reply[Key.MASKED_PARAMETERS]]
            masked = arrays if masked is None else parameters_addition(masked, arrays)
    collected = {k: [] for k in range(count)}
    for state in states:
        with clock.measure("site"):
            answer = mod._unmask(state, {Key.ACTIVE_NODE_ID_LIST: [*range(count)], Key.DEAD_NODE_ID_LIST: []})
        for owner, share in zip(answer[Key.NODE_ID_LIST], answer[Key.SHARE_LIST], strict=True):
            collected[owner].append(share)
            clock.bytes += len(share)
    with clock.measure("server"):
        dimensions = [array.shape for array in masked]
        for shares in collected.values():
            seed = combine_shares(shares[:RULES.needed(count)])
            masked = parameters_subtraction(masked, pseudo_rand_gen(seed, settings[Key.MOD_RANGE], dimensions))
        factor, arrays = factor_extract(parameters_mod(masked, settings[Key.MOD_RANGE]))
        offset = -(count - 1) * settings[Key.CLIPPING_RANGE]  # as in the workflow of Flower
        (result,) = dequantize(arrays, settings[Key.CLIPPING_RANGE], settings[Key.TARGET_RANGE])
        mean = (result + offset) * (settings[Key.TARGET_RANGE] / factor)
    return clock, mean


def measured(count, parameters, repeats, with_flower):
    """A row of the table."""
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=parameters).astype(np.float32) for _ in range(count)]
    runs = {"plain": [], "secure": [], "absent": [], "all sites": [], "all sites, 32 bits": [], "SecAgg+": []}
    expected = np.sum(vectors, axis=0, dtype=float)
    with tempfile.TemporaryDirectory() as folder:
        sites, all_sites = Sites(Path(folder) / "most", count), Sites(Path(folder) / "all", count, ALL_SITES)
        absent = sites.names[:count - RULES.smallest(count)][:max(1, count // 10)]
        for _ in range(repeats):
            runs["plain"].append(plain_phase(vectors)[0])
            for title, of_run, dtype in (("secure", sites, "<u8"), ("all sites", all_sites, "<u8"),
                                         ("all sites, 32 bits", all_sites, "<u4")):
                clock, total = of_run.phase(vectors, dtype=dtype)
                np.testing.assert_allclose(total, expected, rtol=0, atol=count * 2.0**-(FRACTIONS[dtype] + 1))
                runs[title].append(clock)
            if absent:
                runs["absent"].append(sites.phase(vectors, absent)[0])
            if with_flower:
                clock, mean = secagg_phase(vectors)
                np.testing.assert_allclose(mean, expected / count, atol=1e-4)
                runs["SecAgg+"].append(clock)
    row = {"sites": count, "parameters": parameters, "absent": len(absent), "ms_keys": ms(sites.seconds_of_keys)}
    for title, clocks in runs.items():
        if clocks:
            best = min(clocks, key=lambda clock: sum(clock.seconds.values()))
            row |= {f"{title}: ms site": ms(best.seconds["site"] / count),
                    f"{title}: ms server": ms(best.seconds["server"]),
                    f"{title}: bytes site": round(best.bytes / count)}
    return row


def ms(seconds):
    """Milliseconds with three digits."""
    value = 1000 * seconds
    return round(value, max(0, 2 - math.floor(math.log10(value)))) if value > 0 else 0.0


def table_of(rows):
    """The rows as the table of docs/secure-sums.md."""
    titles = ("plain", "secure", "all sites", "all sites, 32 bits", "SecAgg+")
    for row in rows:
        cells = [f"{row[f'{title}: ms site']:g}, {row[f'{title}: ms server']:g}" if f"{title}: ms site" in row
                 else "not measured" for title in titles]
        traffic = row["secure: bytes site"] / row["plain: bytes site"]
        yield f"| {row['sites']} | {row['parameters']:,} | {' | '.join(cells)} | {traffic:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=float, default=1e8, help="largest number of sites times parameters")
    parser.add_argument("--flower-sites", type=int, default=30,
                        help="largest number of sites with SecAgg+, which takes minutes with 100")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with_flower = importlib.util.find_spec("flwr") is not None
    rows = []
    for count in options.sites:
        for parameters in options.parameters:
            if count * parameters <= options.largest:
                rows.append(measured(count, parameters, 1 if count * parameters > 3e6 else options.repeats,
                                     with_flower and count <= options.flower_sites))
                print(rows[-1], flush=True)
    print(*table_of(rows), sep="\n")
    if options.out is not None:
        facts = {"command": "python benchmarks/secure_sums.py", "unit": "CPU ms and bytes of one phase; a site: mean",
                 "repeats": options.repeats, "of_more_than_3e6_numbers": 1, "threshold": RULES.threshold}
        options.out.write_text(as_json(facts, rows=rows))


if __name__ == "__main__":
    main()

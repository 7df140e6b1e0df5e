"""The server's part of an evaluation: it learns the scores of every site, or with secure sums their means."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from resolvent.federation.protocol.encoded_message import Outgoing
from resolvent.federation.protocol.exchange import Answers, RoundRules, exchange
from resolvent.federation.protocol.reports import EvaluationReport
from resolvent.federation.protocol.score_sums import count_of_scores, mean_scores_of, names_of_scores
from resolvent.federation.protocol.server_messages import Scores, read_scores
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.server.secure_phases import SecurePhases, read_masked
from resolvent.simulator.storage.tree_files import digest


def evaluate(record: ServerRecord, messages: dict[str, Outgoing], transport: Transport, rules: RoundRules,
             secure: SecurePhases | None, metrics: Sequence[str], *,
             has_shared: bool) -> tuple[EvaluationReport, Answers]:
    """Ask the sites for their scores. An absent site does not stop a run: only its scores are missing.

    Args:
        messages: site -> its message.
        secure: the secure sums of the run; without enough sites there are no means. None: scores of every site.
        metrics: names of the metrics that the sites add to the loss and the score, for secure sums.
        has_shared: whether there is a shared model.
    """
    rules = rules if rules.quorum is None else replace(rules, retries=0)
    if secure is not None:
        return _mean_scores(record, messages, transport, rules, secure, metrics, has_shared=has_shared)
    answers = exchange(transport, messages, partial(read_scores, splits=record.splits), rules)
    scores: dict[int, Scores] = {record.parties.index(name): value for name, value in answers.values.items()}
    return EvaluationReport(
        record.round, {k: s.personal for k, s in sorted(scores.items()) if s.personal is not None},
        {k: s.shared for k, s in sorted(scores.items()) if s.shared is not None},
        tuple(k for k, s in sorted(scores.items()) if s.personal is None), _absent(record, answers)), answers


def _mean_scores(record: ServerRecord, messages: dict[str, Outgoing], transport: Transport, rules: RoundRules,
                 secure: SecurePhases, metrics: Sequence[str], *, has_shared: bool) -> tuple[EvaluationReport, Answers]:
    names = names_of_scores(record.score, metrics)
    count = count_of_scores(names, record.splits, has_shared=has_shared)
    position, answers = (record.round, 0), Answers()
    if secure.stored(position) is None:
        secure.ask([*messages], 1)
        answers = exchange(transport, messages, partial(read_masked, count=count, words=2, kind="scores"), rules)
    total = secure.total(record.run, position, digest(record.state), answers, may_stop=False)[1]
    means = () if total is None else tuple(mean_scores_of(total, names, record.splits))
    return EvaluationReport(record.round, {}, {}, (), _absent(record, answers), means), answers


def _absent(record: ServerRecord, answers: Answers) -> dict[int, str]:
    return {record.parties.index(name): reason for name, reason in answers.absent.items()}

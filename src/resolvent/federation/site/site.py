"""A site of a federation: it answers messages about its table, and trains. It does not depend on an engine.

Each run has a folder in the site's folder. It contains the agreed encoding, a store for each method, and the site's
models after the last round. All that leaves the site is in its journal first.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from resolvent.comparisons.runs.record import SUMMARY_FILE
from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.files import SiteFile, read_site
from resolvent.federation.protocol.job import plan_digest, signed_content
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import (
    JOURNAL,
    SITE_FILE,
    check_run_name,
    code_folder,
    library_version,
    refitted_run,
    runs_of,
)
from resolvent.federation.protocol.plan_files import plan_from_text
from resolvent.federation.protocol.policy import FEDERATION, Policy, policy_of_process
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, answer_message, answer_refusal, refusing
from resolvent.federation.protocol.wire import Message, head_of_message
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.data_sheet import write_data_sheet
from resolvent.federation.site.journal import Journal, digests_of_run
from resolvent.federation.site.kinds import begin_run
from resolvent.federation.site.plan_run import PlanRun
from resolvent.federation.site.planned_work import Membership
from resolvent.federation.site.plans import Plans, Verifier

_PLAN_KINDS = ("describe", "prepare", "finish", "second session")  # of messages about a plan
_MAX_BYTES = 2**24  # of such a message


class Site:
    """A site of a federation.

    Args:
        file: the site's table and limits.
        verify: checks the lead's signature of a plan, and returns the name of the lead.
        policy: that of the site. No message changes it.
        identity: the certificate of the site.
    """

    def __init__(self, name: str, folder: Path, file: SiteFile, *, verify: Verifier, identity: Identity,
                 policy: Policy = FEDERATION) -> None:
        self.name, self._folder, self._file, self._policy = name, folder, file, policy
        self._verify, self._plan, self._lead, self._identity = verify, "", "", identity
        self._run: PlanRun[Any] | None = None
        self._run_name = ""

    def handle(self, data: bytes | memoryview) -> bytes:
        """Answer a message of the server: one about a plan, or one of the rounds of a method of the site's run."""
        head = head_of_message(data)
        handle = None if self._run is None else self._run.handlers.get(head.run)
        if handle is None and "/" in head.run and head.kind not in _PLAN_KINDS:
            raise InputError("the message is of another run or method, or the run is not prepared")
        reply = answer_message(data, self.name, _MAX_BYTES, self._answer) if handle is None else handle(data)
        try:
            self._log_departure(head, reply, is_about_plan=handle is None)
        except (OSError, DamagedFileError) as error:  # an answer that is not logged does not leave
            return answer_refusal(error, self.name, head)
        return reply

    def _answer(self, message: Message) -> bytes:
        """Answer a message about a plan."""
        with refusing(RefusalCode.CONFLICT):
            run = check_run_name(message.run)
        content = self._answer_about_plan(message.kind, run, message.fact("content", dict))
        return message.answer("answer", self.name, {"content": content})

    def _answer_about_plan(self, kind: str, run: str, content: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "second session":  # the command of the site reads it in the journal
            return {}
        if kind == "describe":
            return self._describe(run, content)
        if self._run is None or run != self._run_name or content.get("plan") != self._plan:
            raise Refusal(RefusalCode.CONFLICT, f"the run {run} has not begun at this site with this plan")
        if kind == "prepare":
            self._run.accept_sizes(content.get("sizes"))
            return self._run.prepare({key: value for key, value in content.items() if key not in ("plan", "sizes")})
        if kind == "finish":
            answer, journal = self._run.finish(), self._journal()
            write_data_sheet(self._folder / run, self.name, self._file, self._run, journal, plan=self._plan,
                             lead=self._lead)
            return {**answer, "journal": journal.head}
        raise Refusal(RefusalCode.CONFLICT, f"there is no message '{shorten(kind)}' about a plan")

    def _describe(self, run: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("version") != library_version():
            raise Refusal(RefusalCode.VERSION, f"the site has version {library_version()} of resolvent, and the server "
                          "another: install the same")
        text, sites, roster = request.get("experiment"), request.get("sites"), request.get("roster", [])
        if not isinstance(text, str) or not isinstance(sites, list) or not isinstance(roster, list):
            raise Refusal(RefusalCode.CONFLICT, "the request has no experiment, or no sites")
        self.close()
        self._journal().check_runs()
        refit, keeps_validation = request.get("refit"), request.get("keeps_validation")
        plan = plan_digest(run, text, refit, keeps_validation)
        with refusing(RefusalCode.UNSIGNED):
            lead = self._verify(signed_content(plan, sites, roster), request.get("signature"))
        self._run_name, self._plan, self._lead = run, plan, lead
        membership = Membership(self.name, tuple(dict.fromkeys(map(str, sites))), tuple(map(str, roster)))
        if self.name not in membership.sites or request.get("party") != membership.number:
            raise Refusal(RefusalCode.PLAN, f"the number of {self.name} in the plan is another than that of the "
                          "request, or it does not take part")
        with refusing(RefusalCode.EXPERIMENT):
            experiment = plan_from_text(text, run, policy=self._policy, models=self._file.models,
                                        folder=self._file.folder)
            experiment = experiment.with_refit(refit, keeps_validation)
        if experiment.refit is not None and not (self._folder / str(refitted_run(run)) / SUMMARY_FILE).is_file():
            raise Refusal(RefusalCode.CONFLICT, "the site has no complete run whose methods could be trained again")
        Plans(self._journal()).admit(plan, lead, run, experiment, self._file)
        site_run = begin_run(self._folder / run, self._file, experiment, membership, self._identity, lead=lead,
                             digest=plan)
        answer = {**site_run.describe(), **site_run.own_size()}
        self._run = site_run  # last: a run that was refused answers nothing
        return answer

    def _log_departure(self, message: Message, reply: bytes, *, is_about_plan: bool) -> None:
        """Write to the journal that a reply leaves the site; one about the plan is small, and written as a whole."""
        answer = head_of_message(reply)
        size = {"bytes": len(reply), "sha256": answer.identity}
        if not is_about_plan and self._run is not None:
            kind, journal = f"sent {answer.kind}", self._run.journal
            # Not what has left before, nor a refusal, which is a code: a server could fill the journal with them.
            if answer.kind != "refusal" and not journal.of(kind, run=message.run, sha256=size["sha256"]):
                journal.append(kind, run=message.run, round=answer.round, phase=answer.phase, **size)
            return
        journal = self._journal()
        if answer.kind == "refusal":
            content = {"refused": {key: answer.facts[key] for key in ("code", "column", "limits")}}
            journal.append("refusal", run=self._run_name, content=content, **size)
        else:
            files = {"files": digests_of_run(self._folder / self._run_name)} if message.kind == "finish" else {}
            journal.append(message.kind, run=self._run_name, content=answer.facts["content"], **size, **files)
        if self._run_name:
            journal.mark(self._folder / self._run_name)

    def _journal(self) -> Journal:
        """The journal of the site, for entries about the rows of the run."""
        rows = "" if self._run is None else self._run.journal.rows
        return Journal(self._folder / JOURNAL, rows, self._lead, self._plan, self._file.table)

    def close(self) -> None:
        """Release the stores of the run."""
        if self._run is not None:
            self._run.close()
            self._run = None


def site_of_process(note: KitNote) -> Site:
    """The site of a kit, from the environment variables that the starting command has set."""
    path = os.environ.get(SITE_FILE)
    if path is None:
        raise InputError("this process has no site file: start the site with resolvent site start")
    file = read_site(Path(path))
    return Site(note.name, runs_of(note.kit), replace(file, folder=code_folder() or file.folder), verify=note.verify,
                policy=policy_of_process(), identity=Identity(note.sign, note.verify_participant))


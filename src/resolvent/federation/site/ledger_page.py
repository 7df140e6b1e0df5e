"""The journal of a site as a page for a browser."""

import math

from resolvent.comparisons.page_text import page_text
from resolvent.federation.site.journal import FIELDS, Journal


def ledger_page(site: str, journal: Journal) -> str:
    """The journal as one file for a browser, without scripts and outside resources. All values are escaped."""
    about = [(table, journal.about(rows)) for rows, table in journal.tables.items()]
    tables = [(table, of.usage(), [(lead, of.usage(lead=lead)) for lead in of.leads]) for table, of in about]
    return page_text("ledger", package="resolvent.federation", site=site, journal=journal, tables=tables,
                     fields=[field for field in FIELDS if field != "table"], infinity=math.inf,
                     digests=("plan", "message", "payload", "sha256", "digest", "rows"))

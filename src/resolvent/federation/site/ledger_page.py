"""The ledger of a site as a page for a browser."""

import math

from resolvent.comparisons.page_text import page_text
from resolvent.federation.site.journal import FIELDS, Journal


def ledger_page(site: str, ledger: Journal) -> str:
    """The ledger as one file for a browser, without scripts and outside resources. All values are escaped."""
    about = [(table, ledger.about(rows)) for rows, table in ledger.tables.items()]
    tables = [(table, of.usage(), [(lead, of.usage(lead=lead)) for lead in of.leads]) for table, of in about]
    return page_text("ledger", package="resolvent.federation", site=site, ledger=ledger, tables=tables,
                     fields=[field for field in FIELDS if field != "table"], infinity=math.inf,
                     digests=("plan", "message", "payload", "digest", "rows"))

"""The ledger of a site as a page for a browser."""

import math

from resolvent.comparisons.page_text import page_text
from resolvent.federation.site.ledger import FIELDS, Ledger


def ledger_page(site: str, ledger: Ledger) -> str:
    """The ledger as one file for a browser, without scripts and outside resources. All values are escaped."""
    of_tables = [ledger.of_table(table) for table in ledger.tables]
    tables = [(of.name, of.usage(), [(lead, of.usage(lead=lead)) for lead in of.leads]) for of in of_tables]
    return page_text("ledger", package="resolvent.federation", site=site, ledger=ledger, tables=tables,
                     fields=[field for field in FIELDS if field != "table"], infinity=math.inf,
                     digests=("plan", "message", "payload", "chain"))

"""Pictures of reports. Tests that do not read them draw none: drawing takes most of the time of a report."""

from contextlib import contextmanager

import pytest

from resolvent.comparisons import pages

_DRAW = pages._draw


@contextmanager
def pictures(is_drawn):
    """Within it, pages have their pictures, or empty ones with the same titles."""
    with pytest.MonkeyPatch.context() as patch:
        empty = '<svg width="1pt" height="1pt" viewBox="0 0 1 1"></svg>'
        patch.setattr(pages, "_draw", _DRAW if is_drawn else lambda figure, title: empty)
        yield


@pytest.fixture(scope="module", autouse=True)
def drawing():
    """A module whose tests read pictures has a fixture of this name that does nothing."""
    with pictures(is_drawn=False):
        yield

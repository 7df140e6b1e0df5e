"""An extension of the reference's docstring reader: labelled paragraphs (``Problem: ...``) show as such."""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from hooks import labelled


class Labels(griffe.Extension):
    """Bold labels, and a paragraph for each."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Change one function's docstring."""
        if func.docstring:
            func.docstring.value = labelled(func.docstring.value)

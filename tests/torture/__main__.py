"""Run the campaign: ``python tests/torture``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torture.campaign import main

if __name__ == "__main__":
    sys.exit(main())

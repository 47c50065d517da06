"""Lets these tests import what they share: `from asking import Client`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

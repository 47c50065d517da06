"""Lets the tests of the wire import what they share: `import samples`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

"""Lets the tests of the Kafka codecs import what they share: `import kafka_messages`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

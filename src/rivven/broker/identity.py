"""The name that a cluster goes by: made up once, when its first node starts, and kept for good."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode

import msgspec

from rivven.log import Document
from rivven.ports import Disk, Entropy

logger = logging.getLogger(__name__)

FILE = "cluster.json"


class Identity(msgspec.Struct, frozen=True):
    cluster_id: str = ""


def cluster_id(disk: Disk, entropy: Entropy) -> str:
    """22 letters, as Kafka's are: 16 bytes of chance."""
    file = Document(disk, FILE, Identity)
    found, came_from = file.load()
    if found is not None and found.cluster_id:
        return found.cluster_id
    if came_from == "damaged":
        logger.warning("%s and its copy cannot be read; the cluster gets another name", FILE)
    made = urlsafe_b64encode(entropy.bytes(16)).decode().rstrip("=")
    file.save(Identity(made))
    return made

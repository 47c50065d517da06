"""What Kafka's requests mean here: each is translated to the broker's operations, and their outcome back."""

from .dialect import Asked, Handler, Kafka, Silence, kafka_dialect
from .opening import versions
from .records import overloaded

__all__ = ["Asked", "Handler", "Kafka", "Silence", "kafka_dialect", "overloaded", "versions"]

"""What Kafka's requests mean here: each is translated to the broker's operations, and their outcome back."""

from .dialect import Asked, Handler, Kafka, Silence

__all__ = ["Asked", "Handler", "Kafka", "Silence"]

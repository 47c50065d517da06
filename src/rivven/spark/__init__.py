"""Topics as the Spark format `rivven`: read and written, in batches and in streams, exactly once."""

from .java import java_home
from .planning import DataLost
from .query import Answer, ask
from .session import prepare_environment, register, start
from .source import RivvenSource

__all__ = ["Answer", "DataLost", "RivvenSource", "ask", "java_home", "prepare_environment", "register", "start"]

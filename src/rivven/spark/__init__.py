"""Topics as the Spark format `rivven`: read and written, in batches and in streams, exactly once."""

from . import classes
from .fetching import bounds_of
from .java import java_home
from .options import Writing, writing_of
from .planning import DataLost
from .query import Answer, ask
from .remote import is_remote, start_remote
from .session import prepare_environment, register, start
from .sink import Written, decide, give_up, write_rows
from .source import RivvenSource

__all__ = [
    "Answer",
    "DataLost",
    "RivvenSource",
    "Writing",
    "Written",
    "ask",
    "bounds_of",
    "classes",
    "decide",
    "give_up",
    "is_remote",
    "java_home",
    "prepare_environment",
    "register",
    "start",
    "start_remote",
    "write_rows",
    "writing_of",
]

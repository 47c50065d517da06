"""The commands of `rivven-connect`, one file for each group; `connect/main.py` puts them together."""

__all__: list[str] = []

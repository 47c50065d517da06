"""The `rivven` command: one file per group of commands. They parse, call and print, and decide nothing."""

__all__: list[str] = []

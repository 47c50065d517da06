"""The sinks that come with rivven, one file each; found through the entry points of `rivven.connectors`."""

__all__: list[str] = []

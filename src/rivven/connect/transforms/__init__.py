"""The transforms that come with rivven: records change as Column expressions in the JVM, or in an Arrow function."""

__all__: list[str] = []

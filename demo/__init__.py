"""`make demo`: the whole of rivven in one story, for a person to watch."""

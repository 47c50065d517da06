"""Records as hypothesis makes them up: every null, every length, timestamps in any order."""

from __future__ import annotations

from hypothesis import strategies as st

fields = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=20), fields), max_size=3)
timestamps = st.integers(-(2**61), 2**61) | st.integers(1_700_000_000_000, 1_700_000_100_000)
new_records = st.lists(st.tuples(timestamps, fields, fields, headers), min_size=1, max_size=30)

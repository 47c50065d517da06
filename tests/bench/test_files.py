"""What the limit of open files allows: everything that is wanted, or fewer and the reason."""

import pytest

from bench import files


@pytest.mark.parametrize(("limit", "each", "expected"), [(65_536, 2, 10_000), (20_000, 2, 9_700), (4_096, 1, 3_400)])
def test_fewer_are_measured_where_files_are_few(limit, each, expected):
    count, more = files.affordable(10_000, files_each=each, files=limit)
    assert count == expected
    assert (f"the limit of open files here is {limit:,}" in more.get("note", "")) == (expected < 10_000)

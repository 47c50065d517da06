"""The page of the native protocol says what the code does."""

from __future__ import annotations

import re

import samples

from rivven.wire import BATCHES_REPLY_BYTES_MAX, Capability, requests, responses
from rivven.wire import postcard as words

PAGE = (samples.VECTORS.parents[2] / "docs" / "protocols" / "native.md").read_text()


def test_the_page_shows_the_vectors_of_our_additions():
    assert (samples.VECTORS / "batches.txt").read_text().rstrip() in PAGE


def test_the_page_lists_every_message_with_its_number_and_its_fields():
    rows = {
        (int(number), name): fields for number, name, fields in re.findall(r"\| (\d+) \| `(\w+)` \| (.*) \|", PAGE)
    }
    kinds = [*enumerate(requests.REQUESTS), *enumerate(responses.RESPONSES)]
    assert len(rows) == len(kinds)
    for number, kind in kinds:
        fields = rows[number, kind.__name__]
        assert tuple(re.findall(r"(\w+): [?\[{\w]", re.sub(r"\{.*?\}+", "x", fields))) == kind.__struct_fields__


def test_the_page_knows_every_reason_and_every_capability():
    reasons = [words.SHORT, words.BAD_VARIANT, words.BAD_BOOL, words.BAD_OPTION, words.BAD_VARINT, words.BAD_UTF8]
    assert [reason for reason in reasons if f"`{reason}`" not in PAGE] == []
    assert [bit for bit in Capability if f"| {bit.value.bit_length() - 1} | {bit.value} | `" not in PAGE] == []


def test_the_page_knows_the_limit_of_fetched_batches():
    assert f"{BATCHES_REPLY_BYTES_MAX:,}".replace(",", " ") in PAGE

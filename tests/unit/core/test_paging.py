from __future__ import annotations

import base64

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.paging import offset_of, page_token


def test_a_token_says_where_to_go_on() -> None:
    assert offset_of(page_token(250)) == 250
    assert offset_of(None) == offset_of("") == 0


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("evilhax", "could not base64-decode"),
        (base64.b64encode(b"nonsense").decode(), "decoded value"),
        (base64.b64encode(b"[1]").decode(), "parsed value"),
        (base64.b64encode(b'{"offset": -3}').decode(), "parsed value"),
        (base64.b64encode(b'{"offset": 1e99}').decode(), "parsed value"),
    ],
)
def test_what_we_have_not_given_is_refused(token: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"Invalid page token, {why}"):
        offset_of(token)

"""What of an address is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.address import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/path", "https://host/path"),
        ("https://host:8443/a/b;c@d", "https://host:8443/a/b;c@d"),
        ("https://host", "https://host"),
        ("https://host/path?key=s3cret", "https://host/path?<hidden>"),
        ("https://host?key=s3cret", "https://host?<hidden>"),
        ("https://host/path?", "https://host/path?<hidden>"),
        ("https://host/path#s3cret?x", "https://host/path#<hidden>"),
        ("https://user:s3cret@host/path", "https://<hidden>@host/path"),
        ("https://s3cret@s3cret@host/?s3cret", "https://<hidden>@host/?<hidden>"),
        ("user:s3cret@host/path", "<hidden>@host/path"),
        ("//s3cret@[::1]:80/", "//<hidden>@[::1]:80/"),
        ("", ""),
    ],
)
def test_user_name_query_and_fragment_are_hidden(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.text("a:/@?#[]\n ", max_size=30))
def test_whatever_is_given_is_hidden_once_and_for_all(url: str) -> None:
    shown = shown_url(url)
    assert shown_url(shown) == shown
    assert ("?" in url) == ("?" in shown) or "#" in url

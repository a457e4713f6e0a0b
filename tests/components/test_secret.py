from __future__ import annotations

import copy
import json
import logging
import pickle

import msgspec
import pytest

from leviath.components.secret import Secret

TEXT = "hunter2-\u00e9"


class Holder(msgspec.Struct):
    secret: Secret


def test_no_way_of_printing_shows_it() -> None:
    secret = Secret(TEXT)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", f"{[secret]}"]
    shown += [repr(Holder(secret)), "%s %r" % (secret, secret)]  # noqa: UP031 - what logging does
    assert not any("hunter2" in text for text in shown)
    assert all("Secret(***)" in text for text in shown)


def test_a_log_record_does_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("leviath.test").warning("callback with %s", Secret(TEXT))
    assert caplog.messages == ["callback with Secret(***)"]


def test_only_reveal_gives_it() -> None:
    assert Secret(TEXT).reveal() == TEXT
    assert not hasattr(Secret(TEXT), "__dict__")


@pytest.mark.parametrize("value", [Secret(TEXT), Holder(Secret(TEXT)), {"a": [Secret(TEXT)]}])
def test_no_encoder_takes_it_unasked(value: object) -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode(value)
    with pytest.raises(TypeError):
        msgspec.msgpack.encode(value)
    with pytest.raises(TypeError):
        json.dumps(value)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(value)


def test_it_is_equal_by_text_and_hashable() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("\ud83d") == Secret("\ud83d")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") and not Secret("")


def test_it_does_not_change() -> None:
    secret = Secret("a")
    with pytest.raises(AttributeError):
        secret._text = "b"
    with pytest.raises(AttributeError):
        del secret._text
    assert copy.copy(secret) is copy.deepcopy(secret) is secret

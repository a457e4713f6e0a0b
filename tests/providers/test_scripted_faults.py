"""Whatever a script holds, it is read, or refused with one ConfigError that names every place."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import ConfigError
from leviath.providers.script import KINDS, Script, parse_script

# The words of the format, so that nonsense reaches every branch, with values of every TOML type.
WORDS = st.sampled_from(
    [*KINDS, "runs", "rules", "when", "run", "key", "agent", "loop", "ordinal", "text", "chunks",
     "calls", "name", "arguments", "id", "usage", "prompt", "cost_usd", "errors", "error", "kind",
     "attempt", "retry_after_ms", "after_chunks", "delay_ms", "contains", "is_error", "x"]
)  # fmt: skip
SCALARS = st.one_of(
    st.booleans(), st.integers(-2, 3), st.floats(), st.dates(), st.sampled_from(["", "a", "server"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=6))
def test_a_script_is_read_or_refused_with_places(table: dict[str, Any]) -> None:
    read = _read(table)
    if isinstance(read, Script):
        assert all(entry.replies or entry.run or entry.key or entry.agent for entry in read.runs)
        return
    assert read.fields["faults"]
    for fault in read.fields["faults"]:
        place, _, what = fault.partition(": ")
        assert place.split("#")[0].split(".")[0].strip() in {*table}
        assert what
        assert fault in str(read)


def _read(table: dict[str, Any]) -> Script | ConfigError:
    try:
        return parse_script(table, place="it")
    except ConfigError as refused:
        return refused

"""What the supervisor keeps of an output, compared with the output itself."""

import os
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from leviath.engine.toolbox.supervisor import Order, Output

INLINE, SIDE, SPILL = 20, 7, 60


@given(chunks=st.lists(st.binary(min_size=1, max_size=25), max_size=8))
def test_head_tail_and_spill_are_parts_of_what_was_written(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    with tempfile.TemporaryDirectory() as folder:
        order: Order = {
            "argv": [],
            "host_pid": 0,
            "inline_bytes_max": INLINE,
            "side_bytes_max": SIDE,
            "spill_bytes_max": SPILL,
            "spill": os.path.join(folder, "log"),
            "secrets": [],
        }
        output = Output(order)
        for chunk in chunks:
            output.add(chunk)
        output.close()
        assert (output.size_bytes, output.trouble) == (len(whole), "")
        assert output.flooded == (len(whole) > SPILL)
        if len(whole) <= INLINE:
            assert (bytes(output.head), bytes(output.tail), output.kept_bytes) == (whole, b"", 0)
            assert os.listdir(folder) == []
            return
        assert (bytes(output.head), bytes(output.tail)) == (whole[:SIDE], whole[-SIDE:])
        with open(order["spill"], "rb") as file:
            assert file.read() == whole[:SPILL]
        assert output.kept_bytes == min(len(whole), SPILL)

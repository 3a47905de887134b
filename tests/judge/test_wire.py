"""What crosses a process boundary, and what a hostile peer may send."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.judge.values import Region, TensorSpec, UnsupportedValue, flatten, same_structure, unflatten
from cuda_agent.judge.wire import MAX_MESSAGE, Channel, ChannelClosed, ChannelTimeout, ProtocolError

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


def pair() -> tuple[Channel, socket.socket]:
    return Channel.pair()


def test_messages_and_descriptors_arrive() -> None:
    ours, theirs = pair()
    read, write = os.pipe()
    ours.send({"do": "attach", "size": 3}, [write])
    message, fds = Channel(theirs).recv(timeout=5)
    assert message == {"do": "attach", "size": 3}
    os.write(fds[0], b"x")
    assert os.read(read, 1) == b"x"
    for fd in (read, write, *fds):
        os.close(fd)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (struct.pack("<I", MAX_MESSAGE + 1), ProtocolError),
        (struct.pack("<I", 4) + b"nope", ProtocolError),
        (struct.pack("<I", 2) + b"[]", ProtocolError),
        (struct.pack("<I", 200_000) + b"[" * 200_000, ProtocolError),
        (struct.pack("<I", 4) + b"\xff\xfe\x00\x01", ProtocolError),
        (b"\x01", ChannelTimeout),
    ],
)
def test_what_is_not_a_message_is_the_peers_fault(raw: bytes, error: type[Exception]) -> None:
    ours, theirs = pair()
    theirs.sendall(raw)
    with pytest.raises(error):
        ours.recv(timeout=0.2)


def test_a_peer_that_hangs_up_is_gone() -> None:
    ours, theirs = pair()
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.recv(timeout=1)


@given(plain)
def test_values_come_back_as_they_were(value: Any) -> None:
    tensors: list[torch.Tensor] = []
    tree = flatten([value, torch.ones(2), torch.float16], tensors)
    back = unflatten(tree, tensors)
    assert back[0] == value and back[1] is tensors[0] and back[2] is torch.float16
    assert same_structure(tree, flatten([value, torch.zeros(5), torch.float16], []))


def test_other_objects_do_not_cross() -> None:
    with pytest.raises(UnsupportedValue, match="set"):
        flatten({"x": {1, 2}}, [])


@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=4),
    st.permutations(range(4)),
    st.sampled_from(["float32", "bool", "bfloat16"]),
)
def test_tensors_keep_dense_strides_in_the_arena(shape: list[int], order: list[int], dtype: str) -> None:
    tensor = torch.randn(shape).to(getattr(torch, dtype))
    tensor = tensor.permute([axis for axis in order if axis < len(shape)])
    region = Region((TensorSpec.of(tensor), TensorSpec.of(torch.ones(3))))
    region = Region.from_json(region.to_json())
    memory = torch.zeros(region.nbytes + 512, dtype=torch.uint8)
    views = region.views(memory, 512)
    views[0].copy_(tensor)
    assert torch.equal(views[0], tensor)
    assert views[0].shape == tensor.shape
    assert (views[1].data_ptr() - memory.data_ptr()) % 512 == 0


@pytest.mark.parametrize(
    "claim",
    [
        {"dtype": "float32", "shape": [4], "stride": [0]},
        {"dtype": "float32", "shape": [4], "stride": [2]},
        {"dtype": "float32", "shape": [-4], "stride": [1]},
        {"dtype": "object", "shape": [4], "stride": [1]},
        {"dtype": "float32", "shape": "4"},
        None,
    ],
)
def test_a_claimed_tensor_that_would_leave_its_place_is_refused(claim: Any) -> None:
    with pytest.raises(UnsupportedValue):
        TensorSpec.from_json(claim)

from __future__ import annotations

import pytest

from heterotrain.transport.base import RefusedError
from heterotrain.transport.frames import Hello
from heterotrain.transport.serving import Peer, admit
from heterotrain_api.contract import Role
from heterotrain_rpc.identity import Identity

ORDINALS = {"cpu-0": 0, "gpu-0": 1}


@pytest.mark.parametrize(
    ("identity", "hello", "want"),
    [
        pytest.param(
            Identity("u", Role.WORKER, "gpu-0"),
            Hello("gpu-0", 1, 7, 3),
            Peer("gpu-0", Role.WORKER, 1, 7, 3),
            id="a worker under its own name and ordinal",
        ),
        pytest.param(
            Identity("u", Role.PS, "ps-1"),
            Hello("ps-1", -1, 0, 3),
            Peer("ps-1", Role.PS, -1, 0, 3),
            id="a parameter server",
        ),
        pytest.param(
            Identity("v", Role.WORKER, "gpu-0"), Hello("gpu-0", 1, 7, 3), "of another job", id="a worker of another job"
        ),
        pytest.param(
            Identity("u", Role.WORKER, "gpu-0"), Hello("cpu-0", 0, 7, 3), "HELLO names 'cpu-0'", id="another's name"
        ),
        pytest.param(
            Identity("u", Role.WORKER, "gpu-0"), Hello("gpu-0", 0, 7, 3), "has ordinal 1", id="another's ordinal"
        ),
        pytest.param(
            Identity("u", Role.WORKER, "gpu-9"), Hello("gpu-9", 1, 7, 3), "not among the workers", id="a stranger"
        ),
        pytest.param(
            Identity("u", Role.OPERATOR, "operator"), Hello("operator", 0, 0, 3), "may not use", id="the operator"
        ),
    ],
)
def test_who_is_let_in(identity: Identity, hello: Hello, want: Peer | str) -> None:
    if isinstance(want, Peer):
        assert admit(identity, hello, "u", ORDINALS.get) == want
    else:
        with pytest.raises(RefusedError, match=want):
            admit(identity, hello, "u", ORDINALS.get)

"""What a launcher should have put into the environment and did not is said in one line, before anything waits for it."""

from __future__ import annotations

import pytest

from preheat.errors import PreheatError
from preheat.train.ranks import join

GOOD = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc; a number from 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0; a number from 1"),
        ({"RANK": "2"}, "RANK=2; a number from 0 to 1"),
        ({"RANK": ""}, "RANK=; a number from 0 to 1"),
        ({"MASTER_ADDR": ""}, "WORLD_SIZE=2 and no MASTER_ADDR"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT=x; a number from 0 to 65535"),
    ],
)
def test_a_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch, change: dict[str, str], said: str) -> None:
    for name, value in (GOOD | change).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PreheatError, match=said):
        join("cpu", patience_s=1)

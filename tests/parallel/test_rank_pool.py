"""The pool ends what hangs, tells which rank failed and why, passes over no warning, and goes on afterwards."""

from __future__ import annotations

import logging
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from rank_pool import RankFailed, RankPool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RankPool]:
    pool = RankPool(tmp_path)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (time.sleep, (60,), r"ranks \[0, 1\] of 2 did not answer in time"),
        (operator.truediv, (1, 0), r"rank [01] of 2 failed first:\n(.|\n)*ZeroDivisionError"),
        (os._exit, (3,), r"rank [01] of 2 failed first:\nits process ended with exit code 3"),
        (warnings.warn, ("look",), "UserWarning: look"),
        (logging.getLogger("torch.distributed").warning, ("look",), r"it logged warnings:\ntorch.distributed: look"),
    ],
    ids=["hangs", "raises", "dies", "warns", "logs"],
)
def test_a_failure_is_told_and_the_pool_goes_on(pool: RankPool, function: Callable[..., Any], arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(RankFailed, match=said):
        pool.run(2, function, *arguments, timeout_s=3)
    assert pool.run(2, dist.get_world_size) == [2, 2]
    assert pool.run(1, dist.is_initialized) == [False]

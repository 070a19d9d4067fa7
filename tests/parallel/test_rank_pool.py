"""What hangs is ended, it is told which rank failed first and why, no warning is passed over, and the next call runs."""

from __future__ import annotations

import logging
import operator
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from rank_pool import RankFailed, RankPool


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
def test_a_failure_is_told(ranks: RankPool, function: Callable[..., Any], arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(RankFailed, match=said):
        ranks.run(2, function, *arguments, timeout_s=3)
    assert ranks.run(2, dist.get_world_size) == [2, 2]
    assert ranks.run(1, dist.is_initialized) == [False]

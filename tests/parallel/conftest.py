"""The ranks of the session, and what one process comes to, computed once for each training."""

from collections.abc import Callable

import pytest
from layout_run import Distance, Outcome, Training, distance, train_alone
from rank_pool import RankPool

from preheat.recipe import Parallel

Apart = Callable[[int, Parallel, Training], list[Distance]]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> RankPool:
    return RankPool(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def reference(ranks: RankPool) -> Callable[[Training], Outcome]:
    """What one process comes to; one micro-batch a step."""
    known: dict[str, Outcome] = {}

    def outcome(training: Training) -> Outcome:
        whole = training.with_micro_size(max(samples for samples, _ in training.shapes))
        if repr(whole) not in known:
            known[repr(whole)] = ranks.run(1, train_alone, whole)[0]
        return known[repr(whole)]

    return outcome


@pytest.fixture(scope="session")
def apart(ranks: RankPool, reference: Callable[[Training], Outcome]) -> Apart:
    """How far a layout is from one process, on each rank."""

    def run(count: int, parallel: Parallel, training: Training) -> list[Distance]:
        return ranks.run(count, distance, training, parallel, reference(training))

    return run

"""What `--gpus` understands."""

import pytest

from preheat.errors import PreheatError
from preheat.hardware import Cluster


@pytest.mark.parametrize(
    ("text", "count", "name", "gigabytes"),
    [
        ("64", 64, "GPUs", 80),
        ("16_384", 16_384, "GPUs", 80),
        ("64xH100", 64, "H100", 80),
        ("8xh200", 8, "H200", 141),
        ("8 x A100-40", 8, "A100-40", 40),
        ("8xa100", 8, "A100-80", 80),
        ("8xV100-32GB", 8, "V100-32", 32),
        ("72xGB200", 72, "GB200", 186),
        ("8x96GB", 8, "GPUs", 96),
        ("8x24.5gb", 8, "GPUs", 24.5),
        ("1xcpu", 1, "CPU", 16),
    ],
)
def test_a_number_and_a_kind(text: str, count: int, name: str, gigabytes: float) -> None:
    cluster = Cluster.parse(text)
    assert (cluster.count, cluster.gpu.name, cluster.gpu.memory) == (count, name, gigabytes * 1e9)
    assert cluster.assumed == (text in ("64", "16_384"))


def test_the_assumed_size_is_said() -> None:
    assert str(Cluster.parse("64")) == "64 GPUs (no kind named: 80 GB each are assumed)"
    assert str(Cluster.parse("64xH200")) == "64 H200 of 141 GB"
    assert str(Cluster.parse("8x96GB")) == "8 GPUs of 96 GB"


@pytest.mark.parametrize("text", ["", "0", "H100", "-8", "8x", "8xH100x2", "1e3", "8x0GB", "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PreheatError) as caught:
        Cluster.parse(text)
    assert caught.value.exit_code == 2


def test_an_unknown_kind_is_refused_with_the_nearest_and_how_to_add_it() -> None:
    with pytest.raises(PreheatError, match=r"Did you mean H100\?.*--hardware FILE"):
        Cluster.parse("8xH10")
    with pytest.raises(PreheatError, match="known: V100"):
        Cluster.parse("8xTPUv5")


def test_nothing_is_assumed_of_a_kind_that_nobody_named() -> None:
    """Another card's peak is never taken."""
    for text in ("64", "8x96GB"):
        with pytest.raises(PreheatError, match="no peak for bf16"):
            Cluster.parse(text).gpu.peak("bf16")

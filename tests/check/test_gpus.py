"""What `--gpus` understands."""

import pytest

from preheat.check import Gpus
from preheat.errors import PreheatError


@pytest.mark.parametrize(
    ("text", "count", "kind", "gigabytes"),
    [
        ("64", 64, None, 80),
        ("16_384", 16_384, None, 80),
        ("64xH100", 64, "H100", 80),
        ("8xh200", 8, "H200", 141),
        ("8 x A100-40", 8, "A100-40", 40),
        ("72xGB200", 72, "GB200", 186),
        ("8x96GB", 8, "GPUs", 96),
        ("8x24.5gb", 8, "GPUs", 24.5),
    ],
)
def test_a_number_and_a_kind(text: str, count: int, kind: str | None, gigabytes: float) -> None:
    gpus = Gpus.parse(text)
    assert (gpus.count, gpus.kind, gpus.gpu.memory_gb) == (count, kind, gigabytes)


def test_the_assumed_size_is_said() -> None:
    assert str(Gpus.parse("64")) == "64 GPUs (no kind named: 80 GB each are assumed)"
    assert str(Gpus.parse("64xH200")) == "64 H200 of 141 GB"


@pytest.mark.parametrize("text", ["", "0", "H100", "-8", "8x", "8xH100x2", "1e3", "8x0GB", "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PreheatError) as caught:
        Gpus.parse(text)
    assert caught.value.exit_code == 2


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(PreheatError, match="Did you mean H100"):
        Gpus.parse("8xH10")
    with pytest.raises(PreheatError, match="known: V100"):
        Gpus.parse("8xTPUv5")

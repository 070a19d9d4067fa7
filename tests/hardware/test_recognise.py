"""Names that drivers give, from public logs, and the kinds that they are."""

import pytest

from preheat.hardware import recognised


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.15, "A100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.39, "A100-40"),
        ("NVIDIA A100 80GB PCIe", 79.15, "A100-PCIe"),
        ("NVIDIA H100 80GB HBM3", 79.11, "H100"),
        ("NVIDIA H100 PCIe", 79.11, "H100-PCIe"),
        ("NVIDIA H200", 139.72, "H200"),
        ("NVIDIA H800", 79.11, "H800"),
        ("NVIDIA B200", 178.35, "B200"),
        ("Tesla V100-SXM2-32GB", 31.74, "V100-32"),
        ("NVIDIA GeForce RTX 4090", 23.65, "RTX-4090"),
        ("AMD Instinct MI300X", 191.98, "MI300X"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.5, None),
        ("NVIDIA GeForce GTX 1080", 7.9, None),
        ("NVIDIA GH200 480GB", 94.5, None),
    ],
)
def test_a_driver_s_name_is_a_kind(name: str, gib: float, kind: str | None) -> None:
    found = recognised(name, round(gib * 2**30))
    assert (found.name if found else None) == kind

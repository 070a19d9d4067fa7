"""The catalog against data sheets and published figures, and what a user's own file may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from preheat.errors import PreheatError
from preheat.hardware import Cluster, catalog, find

OWN = """
[B100]
also = ["B100-SXM"]
generation = "blackwell"
memory = 192e9
memory_bandwidth = 8e12
peaks = { bf16 = 1.8e15 }
link_bandwidth = 900e9
domain = 8
server = 8
network_bandwidth = 50e9
"""


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def own(folder: Path, text: str) -> Path:
    file = folder / "own.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("A100", "bf16", 312),
        ("H100", "bf16", 989.4),
        ("H100", "fp8", 1978.9),
        ("B200", "bf16", 2250),
        ("B200", "mxfp8", 4500),
        ("B300", "fp4", 13_500),
        ("GB200", "bf16", 2450),
        ("GB200", "fp4", 9800),
        ("GB300", "fp4", 14_700),
    ],
)
def test_peaks_are_dense(name: str, precision: str, teraflops: float) -> None:
    """Peaks that NVIDIA's own benchmarks of these systems divide by; data sheets print twice as much with sparsity."""
    assert find(name).peak(precision) == teraflops * 1e12


@pytest.mark.parametrize(("name", "precision"), [("V100", "bf16"), ("A100", "fp8"), ("H100", "mxfp8"), ("RTX-4090", "mxfp8")])
def test_a_format_that_the_hardware_lacks_has_no_peak(name: str, precision: str) -> None:
    with pytest.raises(PreheatError, match=f"no peak for {precision}"):
        find(name).peak(precision)


def test_orders_of_magnitude() -> None:
    """A slip of a unit in one entry shows against the others: ratios that hold for every accelerator sold so far."""
    for gpu in set(catalog().values()):
        if gpu.generation == "cpu":
            continue
        assert 0.98 * gpu.memory < gpu.usable < 1.075 * gpu.memory, gpu.name  # GB as sold are at most GiB
        assert 15 < gpu.peaks["fp16"] / gpu.memory_bandwidth < 400, gpu.name
        assert gpu.network_bandwidth <= gpu.link_bandwidth < gpu.memory_bandwidth, gpu.name
        assert gpu.domain % gpu.server == 0, gpu.name
        assert (gpu.price is None) == (not gpu.price_source), gpu.name
        assert gpu.source, gpu.name


def test_a_file_adds_a_kind(tmp_path: Path) -> None:
    file = own(tmp_path, OWN)
    gpu = find("b100-sxm", file)
    assert (gpu.name, gpu.usable, gpu.peak("bf16"), gpu.price) == ("B100", 192_000_000_000, 1.8e15, None)
    assert "B100" not in catalog()


def test_a_file_changes_what_it_names_under_every_name(tmp_path: Path) -> None:
    file = own(tmp_path, '[a100]\nprice = 0.9\nprice_source = "our contract"\n')
    for name in ("A100", "A100-80", "A100-80GB"):
        assert (find(name, file).price, find(name, file).memory) == (0.9, 80_000_000_000)
    assert find("A100").price != 0.9


def test_a_kind_of_another_memory_finds_no_more_than_that(tmp_path: Path) -> None:
    """An H100 that was sold with half the memory has not the 79 GiB that H100s report."""
    gpu = find("H100", own(tmp_path, "[H100]\nmemory = 40e9\n"))
    assert (gpu.memory, gpu.usable) == (40_000_000_000, 40_000_000_000)


@pytest.mark.parametrize("name", ["my_gpu", "B100.rev2", "x"])
def test_whatever_a_kind_may_be_called_can_be_asked_for(tmp_path: Path, name: str) -> None:
    assert Cluster.parse(f"8x{name}", own(tmp_path, OWN.replace("[B100]", f'["{name}"]'))).gpu.name == name


def test_the_file_in_the_settings_is_read_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "settings" / "preheat"
    folder.mkdir(parents=True)
    (folder / "hardware.toml").write_text(OWN)
    assert find("B100").name == "B100"


def test_a_process_without_a_home_has_the_shipped_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert find("H100").peak("bf16") == 989.4e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN.replace("memory_bandwidth", "memory_bandwith"), "Did you mean memory_bandwidth"),
        (OWN.replace("domain = 8\n", ""), "B100 lacks domain"),
        (OWN.replace("192e9", "true"), "memory is True"),
        (OWN.replace("192e9", "-1"), "memory is -1"),
        (OWN.replace("192e9", "nan"), "memory is nan"),
        (OWN.replace("192e9", "inf"), "memory is inf"),
        (OWN.replace("192e9", "1" + 400 * "0"), "a number from 1 in bytes"),
        (OWN.replace("8e12", "1e-300"), "memory_bandwidth is 1e-300"),
        (OWN + "price = 1e-300", "price is 1e-300"),
        (OWN + "usable = 210e9", "usable is 210_000_000_000 bytes of a memory of 192_000_000_000"),
        ("[H100]\nusable = 160e9", "usable is 160_000_000_000 bytes of a memory of 80_000_000_000"),
        (OWN.replace("{ bf16 = 1.8e15 }", "{}"), "FLOP/s by number format"),
        (OWN.replace("[B100]", '["B 100"]'), "a kind is called 'B 100'; letters, digits, dots and dashes"),
        (OWN.replace('"B100-SXM"', '""'), "a kind is called ''"),
        (OWN.replace("B100-SXM", "h100"), "B100 is also called h100; H100 is called so"),
        (OWN.replace("domain = 8", "domain = 8.5"), "a whole number"),
        (OWN.replace("{ bf16 = 1.8e15 }", "{ bf61 = 1.8e15 }"), "FLOP/s by number format"),
        (OWN.replace('["B100-SXM"]', '"B100-SXM"'), "a list of names"),
        (OWN.replace('"blackwell"', "3"), "generation is 3"),
        ("B100 = 3", "B100 is no table"),
        ("[B100", "no TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PreheatError, match=message) as caught:
        catalog(own(tmp_path, text))
    assert caught.value.exit_code == 2


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(PreheatError, match="can't read"):
        catalog(tmp_path / "none.toml")

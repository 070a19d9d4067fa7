"""The markers of the tests that need more than `make setup` brings: Megatron-LM itself, a real model."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "oracle: asks an unpacked megatron-core wheel; PREHEAT_MEGATRON names its folder")
    config.addinivalue_line("markers", "parity: a real model and what unpacks it, which `make parity` installs")

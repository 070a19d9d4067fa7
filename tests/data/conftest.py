"""The marker of the tests that ask Megatron-LM."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "oracle: asks an unpacked megatron-core wheel; PREHEAT_MEGATRON names its folder")

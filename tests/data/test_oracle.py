"""Megatron-LM's own builder and reader over the files that we write; `make oracle` brings it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from preheat.data import indexed

FOLDERS = [Path(part) for part in os.environ.get("PREHEAT_MEGATRON", "").split(":") if part]
MISSING = not FOLDERS or find_spec("torch") is None
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(300), pytest.mark.skipif(MISSING, reason="PREHEAT_MEGATRON names no megatron-core")]

PROGRAM = """
import json, sys, typing
typing.override = getattr(typing, "override", lambda function: function)  # 0.18 and later use it; Python 3.11 lacks it
import numpy, torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
folder, vocabulary = sys.argv[1:]
documents = json.load(sys.stdin)
builder = IndexedDatasetBuilder(f"{folder}/theirs.bin", dtype=DType.optimal_dtype(int(vocabulary)))
for ids in documents:
    builder.add_document(torch.tensor(ids), [len(ids)])
builder.finalize(f"{folder}/theirs.idx")
ours = IndexedDataset(f"{folder}/ours")
print(json.dumps([len(ours), len(ours.document_indices), [ours[n].tolist() for n in range(len(ours))]]))
"""


@pytest.mark.parametrize("vocabulary", [65_499, 65_500])
def test_the_files_are_those_of_megatrons_builder_and_its_reader_reads_ours(tmp_path, vocabulary):
    generator = np.random.default_rng(vocabulary)
    documents = [generator.integers(0, vocabulary, size).tolist() for size in generator.integers(1, 300, 200)]
    indexed.write(tmp_path / "ours", [np.array(ids) for ids in documents], indexed.dtype_for(vocabulary))
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), str(vocabulary)]
    environment = os.environ | {"PYTHONPATH": ":".join(str(folder.resolve()) for folder in FOLDERS)}
    answer = subprocess.run(command, input=json.dumps(documents), env=environment, capture_output=True, text=True, timeout=200)
    assert answer.returncode == 0, answer.stderr[-2000:]
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()
    assert json.loads(answer.stdout.splitlines()[-1]) == [200, 201, documents]

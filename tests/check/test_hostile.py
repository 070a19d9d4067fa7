"""Files that are no recipe, or want to harm: refused within a second, with one clear message, and nothing is run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from preheat.check import check
from preheat.errors import PreheatError
from preheat.recipe import load

GOOD = (Path(__file__).parent / "recipes" / "dense.toml").read_text("utf-8")

HOSTILE: dict[str, bytes] = {
    "a line of 10 MB": b'name = "' + b"a" * 10_000_000 + b'"\n',
    "10 MB of brackets": b"x = " + b"[" * 10_000_000,
    "deep nesting": b"x = " + b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "deep tables": b"x = " + b"{ a = " * 50_000 + b"1" + b" }" * 50_000 + b"\n",
    "a long dotted key": b"a" + b".a" * 200_000 + b" = 1\n",
    "many keys": b"".join(b"k%d = 1\n" % n for n in range(60_000)),
    "interpolation": GOOD.replace('"dense"', '"${oc.env:HOME}"', 1).encode(),
    "a YAML tag": b"!!python/object/apply:os.system ['true']\n",
    "YAML": b"model:\n  layers: 32\n",
    "a NUL byte": GOOD.replace("dense", "den\0se", 1).encode(),
    "no UTF-8": b'name = "\xff\xfe"\n',
    "UTF-16": GOOD.encode("utf-16"),
    "a twice given key": (GOOD + "\n[model]\nlayers = 3\n").encode(),
    "an absurd number": GOOD.replace("layers = 32", "layers = " + "9" * 4000, 1).encode(),
    "an unbelievable number": GOOD.replace("layers = 32", "layers = -1", 1).encode(),
    "not a number": GOOD.replace("peak_lr = 3e-4", "peak_lr = nan", 1).encode(),
    "nothing": b"",
    "binary": bytes(range(256)) * 100,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_it_is_refused_within_a_second(tmp_path: Path, kind: str) -> None:
    recipe = tmp_path / "hostile.toml"
    recipe.write_bytes(HOSTILE[kind])
    started = time.process_time()
    with pytest.raises(PreheatError) as caught:
        check(load(str(recipe)))
    assert time.process_time() - started < 1
    assert caught.value.exit_code == 2
    assert len(str(caught.value.problems[0])) < 10_000


@pytest.mark.parametrize("kind", ["a line of 10 MB", "deep nesting", "a NUL byte", "interpolation", "a YAML tag"])
def test_the_program_ends_with_code_2_and_no_traceback(tmp_path: Path, kind: str) -> None:
    recipe = tmp_path / "hostile.toml"
    recipe.write_bytes(HOSTILE[kind])
    command = [sys.executable, "-m", "preheat", "check", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "hostile.toml" in done.stdout


@pytest.mark.parametrize(
    "setting",
    [
        "model.layers=1000000000000",
        "schedule.length=999999999T tokens",
        "parallel.pipeline=1000000000",
        "parallel.tensor=999999999999999999",
        "batch.seq_len=9000000000000000000",
        "batch.global_size=9000000000000000000",
        "model.heads=1000000007",
        "parallel.pipeline_layers=[" + "1, " * 20_000 + "1]",
    ],
)
def test_absurd_sizes_are_judged_and_not_counted_up(setting: str) -> None:
    """A legal file with sizes beyond all measure gets its errors within a second as well."""
    recipe = str(Path(__file__).parent / "recipes" / "dense.toml")
    started = time.process_time()
    try:
        found = check(load(recipe, (setting, "parallel.gpus=64")))
    except PreheatError as error:
        found = list(error.problems)
    assert [problem for problem in found if problem.severity == "error"]
    assert time.process_time() - started < 1

"""The same preparation by other hands: Slurm's arrays and a Ray cluster of two nodes give the bytes that one process gives."""

import json
import os
import random
import stat
import subprocess
import sys

import pytest

from preheat import recipe
from preheat.data import planned, prepare
from preheat.data.pipeline import plan, tasks
from preheat.data.pipeline.reading import READ
from preheat.data.pipeline.slurm import script
from preheat.errors import PreheatError

WORDS = [a + b + c for a in "bcdfgst" for b in "aeiou" for c in ("", "n", "r")]
VOCAB_SIZE = 300
TOKENIZER = recipe.Tokenizer(kind="train-bpe")
DEDUP = {"jaccard": 0.6, "paragraphs": True, "paragraph_places": 2}
SHARED = " ".join(random.Random(7).choices(WORDS, k=25))
"""A paragraph of every text."""
DATA = recipe.Data.model_validate(
    {"source": [{"name": name, "paths": [f"{name}/*.txt"]} for name in ("a", "b")], "held_out": "10%", "dedup": DEDUP}
)


def content(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


def text(seed):
    return " ".join(random.Random(seed).choices(WORDS, k=200)).capitalize() + f".\n\n{SHARED.capitalize()}.\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two sources in shards of a file each, with a copy, a near-copy and a paragraph that all have, and what one process makes of them."""
    monkeypatch.setattr(plan, "MIN_SHARD", 1)
    for name, first in (("a", 0), ("b", 100)):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.txt").write_text(text(first + number))
    (tmp_path / "b/copy.txt").write_text(text(1))
    (tmp_path / "b/near.txt").write_text(text(2) + " Indeed.")
    prepare(DATA, TOKENIZER, VOCAB_SIZE, folder=tmp_path, out=tmp_path / "expected", progress=lambda line: None, workers=1)
    assert "repeated paragraph removed" in (tmp_path / "expected/exclusions.jsonl").read_text()
    return tmp_path


SBATCH = """#!{python}
# Does at once what Slurm would do later: every task of an array, unless the job it waits for has failed.
import os, subprocess, sys
options = dict(part.split("=", 1) for part in sys.argv[1:] if "=" in part and part.startswith("--"))
with open("{log}", "a") as log:
    print(options["--job-name"], options.get("--array", ""), options.get("--dependency", ""), "--mem=1G" in sys.argv, file=log)
number = sum(1 for _ in open("{log}"))
after = options.get("--dependency", "").removeprefix("afterok:")
failed = bool(after) and os.path.exists("{log}.failed." + after)
tasks = range(int(options["--array"].split("-")[1].split("%")[0]) + 1) if "--array" in options else [None]
for task in [] if failed else tasks:
    environment = os.environ if task is None else os.environ | {{"SLURM_ARRAY_TASK_ID": str(task)}}
    with open("{log}.output", "a") as output:
        failed |= subprocess.run(["sh", "-c", options["--wrap"]], env=environment, stdout=output, stderr=output).returncode != 0
if failed:
    open("{log}.failed." + str(number), "w")
print(number)
"""


@pytest.fixture
def slurm(folder, monkeypatch):
    """An `sbatch` on the path that runs arrays on this machine; returns a function that submits the script."""
    (folder / "bin").mkdir()
    sbatch = folder / "bin/sbatch"
    sbatch.write_text(SBATCH.format(python=sys.executable, log=folder / "jobs"))
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("preheat.data.pipeline.slurm.ARRAY_LIMIT", 2)

    def submit(context, finish):
        for old in folder.glob("jobs*"):
            old.unlink()
        text = script(context, finish, at_once=5, options="--mem=1G")
        subprocess.run(["sh", "-c", text], check=True, stdout=subprocess.DEVNULL)
        return [line.split(" ") for line in (folder / "jobs").read_text().splitlines()], (folder / "jobs.output").read_text()

    return submit


def test_slurm_arrays_give_the_same_bytes_and_go_on_after_a_failure(folder, slurm, monkeypatch):
    out = folder / "out"
    context = planned(DATA, TOKENIZER, VOCAB_SIZE, folder=folder, out=out)
    finished = folder / "finished"
    (context.work / "exact").write_text("in the way")
    jobs, output = slurm(context, f"touch {finished}")
    assert "cannot be written" in output
    assert not finished.exists()
    assert not (context.work / "divide").exists()
    (context.work / "exact").unlink()
    jobs, output = slurm(context, f"touch {finished}")
    assert output == ""
    assert finished.exists()
    # Ten shards are five for each of two jobs; a step waits for the one before.
    assert jobs[0] == ["preheat-read", "0-1%5", "", "True"]
    assert [job[2] for job in jobs[1:]] == [f"afterok:{number}" for number in range(1, len(jobs))]
    assert [job[0] for job in jobs][-2:] == ["preheat-list", "preheat-finish"]
    lines = []
    prepare(DATA, TOKENIZER, VOCAB_SIZE, folder=folder, out=out, progress=lines.append, workers=1)
    assert content(out) == content(folder / "expected")
    assert sum("tasks were done before" in line for line in lines) == 16
    with pytest.raises(PreheatError, match="nothing left to plan"):
        planned(DATA, TOKENIZER, VOCAB_SIZE, folder=folder, out=out)


def test_two_nodes_of_ray_give_the_same_bytes(folder):
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    from preheat.data.pipeline.ray_cluster import RayCluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        lines = []
        backend = RayCluster(cluster.address)
        prepare(DATA, TOKENIZER, VOCAB_SIZE, folder=folder, out=folder / "out", progress=lines.append, backend=backend)
        assert "10 shards; Ray, 2 CPUs on 2 nodes" in lines[0]
        assert content(folder / "out") == content(folder / "expected")
        with pytest.raises(PreheatError, match=r"model\.vocab_size is 50_000"):
            prepare(
                DATA, TOKENIZER, 50_000, folder=folder, out=folder / "other", progress=lines.append, backend=RayCluster(cluster.address)
            )
        assert not (folder / "other").exists()
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_the_command_writes_the_script(folder):
    (folder / "mine.toml").write_text(
        'extends = "tiny"\nname = "mine"\n[[stage]]\nname = "main"\nmix = { a = 1 }\n[[data.source]]\nname = "a"\npaths = ["a/*.txt"]\n'
    )
    command = [sys.executable, "-m", "preheat", "data", "prepare", "mine.toml", "--data", "o ut", "--slurm", "go.sh", "--sbatch=-p cpu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    text = (folder / "go.sh").read_text()
    assert done.stdout == text
    assert subprocess.run(["sh", "-n", str(folder / "go.sh")], check=False).returncode == 0
    assert "--array=0-0%64" in text
    assert "-p cpu" in text
    assert "preheat data prepare mine.toml" in text
    assert json.loads((folder / ".o ut.partial/plan.json").read_text())["shards"]


def test_work_that_another_version_left_in_other_files_is_done_again(folder, monkeypatch):
    context = planned(DATA, TOKENIZER, VOCAB_SIZE, folder=folder, out=folder / "out")
    tasks.perform(context, READ, 0)
    assert tasks.is_done(context, READ, 0)
    monkeypatch.setattr(tasks, "LAYOUT", tasks.LAYOUT + 1)
    assert not tasks.is_done(context, READ, 0)

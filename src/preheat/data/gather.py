"""Reading and cleaning all sources, on several processes where that pays, with what later steps need to know of each document."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from preheat import recipe
from preheat.data import dedup
from preheat.data.clean import POLICIES, clean
from preheat.data.sources import Document, File, Reading, exclude, read_file
from preheat.errors import Problem, RunFailed

PARALLEL_FROM = 8_000_000
"""Bytes below which starting processes takes longer than it saves."""
MAX_PROCESSES = 8
TASK_BYTES = 1_000_000


@dataclass
class Gathered:
    """The documents of a source that cleaning let through, in the order of their ids, and what happened on the way."""

    reading: Reading = field(default_factory=Reading)
    edited: Counter[str] = field(default_factory=Counter)
    documents: list[Document] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Hash of each document's normalised text."""
    bands: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    """Band hashes, in blocks of shape (documents, 32); empty unless near-duplicates are looked for."""
    digests: list[str] = field(default_factory=list)
    """SHA-256 of each file."""

    def add(self, other: Gathered) -> None:
        """Append what was gathered from the next files."""
        self.reading.documents += other.reading.documents
        self.reading.bytes += other.reading.bytes
        self.reading.repaired += other.reading.repaired
        self.reading.excluded += other.reading.excluded
        self.edited += other.edited
        self.documents += other.documents
        self.keys += other.keys
        self.bands += other.bands
        self.digests += other.digests


@dataclass(frozen=True)
class Task:
    """Files of a source to read together; whether near-duplicates will be looked for."""

    source: recipe.Source
    files: tuple[File, ...]
    near: bool


def gather(data: recipe.Data, files: Sequence[Sequence[File]], progress: Callable[[str], None]) -> list[Gathered]:
    """One `Gathered` for each source of `data`, from its files.

    Raises:
        RunFailed: a worker process died.
    """
    tasks = [Task(s, group, data.dedup.near) for s, own in zip(data.source, files, strict=True) for group in _groups(own)]
    size = sum(file.size for own in files for file in own)
    processes = min(os.cpu_count() or 1, MAX_PROCESSES, len(tasks)) if size >= PARALLEL_FROM else 1
    progress(f"reading {len(files)} sources, {sum(map(len, files)):,} files, {size / 1e6:.1f} MB; processes: {processes}")
    gathered = {source.name: Gathered() for source in data.source}
    for task, part in zip(tasks, _run(tasks, processes), strict=True):
        gathered[task.source.name].add(part)
    return list(gathered.values())


def _run(tasks: Sequence[Task], processes: int) -> Iterable[Gathered]:
    """The results of the tasks, in their order."""
    if processes == 1:
        yield from map(work, tasks)
        return
    command = [sys.executable, "-m", "preheat.data.worker"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    try:
        with ExitStack() as stack:
            for _ in range(processes):
                idle.put(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)))
            yield from stack.enter_context(ThreadPoolExecutor(processes)).map(partial(_delegate, idle), tasks)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        raise RunFailed(Problem("data.worker", "a worker process died", "", "Look for a lack of memory; nothing was written")) from None


def _delegate(idle: SimpleQueue[subprocess.Popen[bytes]], task: Task) -> Gathered:
    """Let an idle worker do a task."""
    worker = idle.get()
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        pickle.dump(task, worker.stdin)
        worker.stdin.flush()
        result: Gathered = pickle.load(worker.stdout)
        return result
    finally:
        idle.put(worker)


def _groups(files: Sequence[File]) -> Iterator[tuple[File, ...]]:
    """Consecutive files of about a megabyte together."""
    group: list[File] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= TASK_BYTES:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def work(task: Task) -> Gathered:
    """Read and clean the files of a task."""
    out = Gathered()
    policy = POLICIES[task.source.policy]
    shingler = dedup.Shingler()
    shingles = []
    for file in task.files:
        out.digests.append(_digest(file))
        for document in read_file(task.source, file, out.reading):
            text, reason, detail = clean(document.text, policy, out.edited)
            if reason:
                out.reading.excluded.append(exclude(document, "clean", reason, detail))
                continue
            out.documents.append(Document(document.source, document.id, text))
            out.keys.append(dedup.key(text))
            if task.near:
                shingles.append(shingler.shingles(text))
    out.bands.append(dedup.bands(shingles))
    return out


def _digest(file: File) -> str:
    try:
        with Path(file.path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""  # Reading it will tell.

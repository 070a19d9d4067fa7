"""The processes of a run: how they find each other, decide together, and end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from preheat.errors import PreheatError, Problem, RunFailed, refuse
from preheat.launch import REQUEUE, STOPPING

PATIENCE_S = 600
"""How long ranks wait for one that does not come, unless told otherwise."""
_START_S = 300
"""How long the first process waits for the last one to start, at least."""
_HOLD_S = 0.5
"""How long a rank keeps its error back, for a launcher to show first what may be the cause: that another one was killed."""


def world_size() -> int:
    """How many processes the launcher started: `torchrun` and `preheat train` say so in the environment."""
    return _told("WORLD_SIZE", 1) if "WORLD_SIZE" in os.environ else 1


def _told(name: str, least: int, most: int | None = None) -> int:
    """A number that the launcher put into the environment.

    Raises:
        PreheatError: it is not there, no number, or out of range.
    """
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= (most if most is not None else int(text))):
        want = f"a number from {least}" + (f" to {most}" if most is not None else "")
        refuse("run.environment", f"the environment says {name}={text}", want, "Start it with torchrun or --nproc, or unset WORLD_SIZE")
    return int(text)


def join(device_type: str, patience_s: float) -> PrefixStore | None:
    """Join the other processes, if there are any; returns the store of this attempt.

    A collective waits longer than the watchdog, who can say for whom, and all wait longer for each other's start.

    Every attempt of an elastic restart has keys of its own in the launcher's store: a restarted rank would else read the addresses of dead
    ones.
    """
    if world_size() == 1:
        return None
    if not os.environ.get("MASTER_ADDR"):
        got = f"the environment says WORLD_SIZE={world_size()} and no MASTER_ADDR"
        refuse("run.environment", got, "where the first process listens", "Start it with torchrun or --nproc, or unset WORLD_SIZE")
    rank = _told("RANK", 0, world_size() - 1)
    timeout = timedelta(seconds=max(_START_S, 2 * patience_s))
    launchers: Store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        _told("MASTER_PORT", 0, 65_535),
        world_size(),
        is_master=_hosts_store(),
        timeout=timeout,
    )
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', 'run')}/attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    store = PrefixStore(attempt, launchers)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size(), timeout=timeout)
    return store


def first_deadline(store: PrefixStore | None, deadline: float | None) -> float | None:
    """The deadline that the first process of the run told, whatever attempt it is: an elastic restart begins no new time."""
    if store is None or deadline is None:
        return deadline
    return float(store.underlying_store.compare_set("deadline", "", str(deadline)))


def _hosts_store() -> bool:
    """Whether this rank hosts the store: an elastic agent hosts it itself."""
    return os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def leave(code: int) -> NoReturn:
    """End this process after the others: interpreters that go down with live meshes may abort after a run that was right."""
    sys.stdout.flush()
    sys.stderr.flush()
    if dist.is_initialized():
        dist.barrier()
        os._exit(code)
    sys.exit(code)


@contextmanager
def one_speaks(say: Callable[[PreheatError], None]) -> Iterator[None]:
    """An error of one of several processes ends that process at once, without taking down what others wait in.

    The first to fail says why. Who fails after it, because it is gone or because all found the same, is silent, and ends with its code
    where that says `REQUEUE`: then all were asked to stop.
    """
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, PreheatError) else error.code if isinstance(error, SystemExit) else 1
        code = code if isinstance(code, int) else 1
        if isinstance(error, PreheatError) and os.environ.get("RANK", "0") != "0":
            time.sleep(_HOLD_S)  # what all find wrong, the first one says
        if not dist.is_initialized():
            raise
        for number in STOPPING:  # what ends here ends by itself, and says first what it has to
            signal.signal(number, signal.SIG_IGN)
        relayed = isinstance(error, SystemExit) and code != REQUEUE  # what `from_first` found, the first process is about to say
        first, first_code = first_failure(code) if not relayed else (False, code)
        speaks = first and not isinstance(error, SystemExit | KeyboardInterrupt)
        time.sleep(_HOLD_S if first else 2 * _HOLD_S)
        if isinstance(error, PreheatError) and speaks:
            say(error)
        elif speaks:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(REQUEUE if first_code == REQUEUE else code)


def first_failure(code: int) -> tuple[bool, int]:
    """Whether this is the first process of the attempt to fail, as far as it can know, and the exit code of the one that is.

    One that was killed could not say so.
    """
    own = f"{dist.get_rank()} {code}"
    try:
        found = _get_default_store().compare_set("failed", "", own).decode()
    except RuntimeError:  # the store went down with the rank that hosts it
        return True, code
    return found == own, int(found.split()[1])


def is_first() -> bool:
    """Whether this process writes the run's files and speaks."""
    return not dist.is_initialized() or dist.get_rank() == 0


Group = dist.ProcessGroup | None
"""Through which ranks talk; None for the default one."""


def exchange(value: Any, group: Group = None) -> list[Any]:
    """The JSON values of all ranks, in their order."""
    if not dist.is_initialized():
        return [value]
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(content)]), group=group)
    longest = max(int(length) for length in lengths)
    buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(buffers, torch.nn.functional.pad(content, (0, longest - len(content))), group=group)
    return [json.loads(bytes(buffer[: int(length)].tolist())) for buffer, length in zip(buffers, lengths, strict=True)]


def from_first(make: Callable[[], Any]) -> Any:
    """What the first rank makes, a JSON value, on all ranks; what it refuses, it says, and the others end without a word.

    Raises:
        RunFailed: the operating system refused it.
    """
    made: Any = None
    refused: PreheatError | None = None
    if is_first():
        try:
            made = make()
        except PreheatError as error:
            refused = error
        except OSError as error:
            refused = RunFailed(Problem("run.folder", str(error), "", "Look at the run folder and its disk"))
    answer, code = exchange([made, refused.exit_code if refused is not None else 0])[0]
    if refused is not None:
        raise refused
    if code:
        raise SystemExit(code)
    return answer


def together(action: Callable[[], None], failed: Callable[[str], Problem], group: Group = None) -> None:
    """Do something on every rank.

    Raises:
        RunFailed: the operating system refused it on some rank; all ranks raise the first one's error, by way of `failed`.
    """
    said: str | None = None
    try:
        action()
    except OSError as error:
        said = str(error)
    several = dist.is_initialized()
    said_by = enumerate(exchange(said, group))
    refusals = [f"{message} (rank {rank})" if several else message for rank, message in said_by if message]
    if refusals:
        raise RunFailed(failed(refusals[0]))


def any_rank(wish: bool) -> bool:
    """Whether any rank wishes it: a signal reaches one process, and all must stop after the same step."""
    if not dist.is_initialized():
        return wish
    flag = torch.tensor([int(wish)])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())

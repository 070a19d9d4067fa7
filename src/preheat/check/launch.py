"""Rules about where a recipe runs: servers, the scheduler's and launcher's variables, installed software."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject

_NUMBER = re.compile(r"[0-9]{1,9}")
EPHEMERAL = (32_768, 60_999)
"""Ports that Linux hands out by itself (net.ipv4.ip_local_port_range's default)."""

USUAL_DOMAIN = 8
"""GPUs that NVLink joins in the usual server, when nobody says what it runs on."""


@rule("launch.tensor-domain", "warning")
def tensor_domain(subject: Subject) -> Iterator[Finding]:
    """Tensor parallelism stays within the GPUs that NVLink joins: it exchanges activations four times a layer.

    Example: tensor = 16 on servers of 8 GPUs.
    Source: arXiv 2104.04473, section 3.2; a GB200 rack (NVL72) joins 72.
    """
    size, domain = subject.parallel.tensor, subject.gpus.gpu.domain if subject.gpus else USUAL_DOMAIN
    if size > domain:
        got = f"tensor {size}"
        yield Finding("parallel.tensor", got, f"NVLink joins {domain} GPUs", f"Use tensor = {domain} and more pipeline ranks")


@rule("launch.servers", "note")
def servers(subject: Subject) -> Iterator[Finding]:
    """More than one server is used as whole servers.

    Example: --gpus 20 on servers of 8 leaves 4 GPUs of the third idle.
    Source: preheat; torchrun takes the same --nproc-per-node everywhere.
    """
    if subject.gpus and subject.gpus.count > subject.gpus.gpu.server and subject.gpus.count % subject.gpus.gpu.server:
        count, each = subject.gpus.count, subject.gpus.gpu.server
        yield Finding("parallel", f"{count} GPUs", f"servers have {each}", f"Use {count // each * each} or {-(-count // each) * each}")


@rule("launch.two-launchers")
def two_launchers(subject: Subject) -> Iterator[Finding]:
    """One program starts the ranks of a server: torchrun once per server, or Slurm once per GPU, never both.

    With both, every Slurm task starts its own torchrun, and all of them bind the same port.
    Example: --ntasks-per-node=8 under which torchrun --nproc-per-node=8 runs: 64 processes on 8 GPUs.
    Source: case K02 (NVIDIA/Megatron-LM issue 1371).
    """
    environment = subject.machine.variables
    tasks = re.match(r"[0-9]{1,9}", environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_NTASKS_PER_NODE") or "")
    local = environment.get("LOCAL_WORLD_SIZE", "")
    if tasks and int(tasks[0]) > 1 and _NUMBER.fullmatch(local) and "TORCHELASTIC_RUN_ID" in environment:
        per_node = int(tasks[0])
        got = f"Slurm starts {per_node} tasks a server and torchrun {local} processes in each"
        yield Finding("parallel", got, f"{per_node * int(local)} processes", "Use --ntasks-per-node=1 with torchrun, or Slurm without it")


@rule("launch.port", "warning")
def port(subject: Subject) -> Iterator[Finding]:
    """The rendezvous port is not one that the system may give to somebody else at any moment.

    Example: MASTER_PORT = 10000 + job id modulo 50,000 falls among the ephemeral ports half of the time.
    Source: case K01 (NVIDIA/enroot issue 243); Linux, ip_local_port_range.
    """
    given = subject.machine.variables.get("MASTER_PORT", "")
    low, high = EPHEMERAL
    if _NUMBER.fullmatch(given) and low <= int(given) <= high:
        got = f"MASTER_PORT {given}"
        yield Finding("parallel", got, f"ports {low} to {high} are handed out by the system", "Choose one below, for instance 29500")


@rule("launch.torch", "warning")
def torch_version(subject: Subject) -> Iterator[Finding]:
    """The installed torch has no known way to corrupt memory with a checkpoint; its package is looked up, not imported.

    Example: torch 2.9.0: even `weights_only` loading of a hostile file is unsafe.
    Source: GHSA-63cw-57p8-fm3p (torch up to 2.9.1); case L02.
    """
    version = subject.machine.torch
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers and (int(numbers[1]), int(numbers[2])) < (2, 10):
        want = "GHSA-63cw-57p8-fm3p: a hostile .pt file corrupts memory even with weights_only"
        yield Finding("name", f"torch {version} is installed", want, "Upgrade to 2.10 or later; load safetensors only")

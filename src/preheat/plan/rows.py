"""Published runs from a CSV file: what ran where in which layout, and the throughput and memory that somebody measured."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Literal

from preheat.arithmetic import dense_layers, flops_per_token, head_dim, parameters
from preheat.arithmetic.parameters import value_dim
from preheat.errors import PreheatError, refuse
from preheat.hardware import Gpu, find
from preheat.plan.assumed import fastest
from preheat.plan.constants import shipped
from preheat.plan.kernels import Device
from preheat.plan.published import UnknownModel, architecture
from preheat.plan.step import StepModel
from preheat.recipe import Model, Parallel, Recompute

_NEEDED = ("source", "model", "hardware", "num_gpus", "seq_len", "TP", "PP", "tokens_s_gpu", "tflops_gpu", "step_time_s")
_COLUMNS = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn": "ffn_hidden", "vocab": "vocab_size"}
_COLUMNS |= {"experts": "experts", "topk": "topk"}
_FULL = 8192
"""Tokens on a GPU from which a micro-batch of one sample keeps it busy, so that a row need not name its own."""
_SEQUENCE_UNIT = 128
"""What a sequence length that follows from rounded figures is a multiple of, and how far off they may be."""
_EXACT = 0.005
_ONE_SAMPLE = "a micro-batch of one sample, of 8,192 tokens and more on a GPU"
_FASTEST = "the fastest micro-batch and virtual stages that fit the memory"
_LENGTH = "the sequence length that the row's tokens/s and seconds give"
_BATCH = "the global batch that the row's rate and seconds give"
_ROOM = 1.02
"""How far above a card's peak a figure may lie by rounding before it is taken for a slip of the pen."""


_JEAN_ZAY = {"ampere": 8, "volta": 4}
"""GPUs of a server by generation, on the cluster of BigScience's runs: each server has four Omni-Path cards of 100 Gb/s."""


class Skip(Exception):
    """A row that names too little, or nothing that preheat plans; the message is the reason."""


@dataclass(frozen=True)
class Run:
    """One published run."""

    id: str
    source: str
    name: str
    model: Model
    gpu: Gpu
    ranks: int
    precision: str
    """As `kernels.Device.of` takes it."""
    software: str
    """As in `constants.toml`."""
    seq_len: int
    micro_batch: int
    global_batch: int
    parallel: Parallel
    tokens_per_s_per_gpu: float | None
    """Measured; None where `no_throughput` says why."""
    no_throughput: str
    memory: float | None
    """Bytes measured on a GPU, of the kind that `memory_kind` says."""
    memory_kind: str
    notes: str
    assumed: tuple[str, ...] = ()
    """What the row does not say and was put in its place."""

    @property
    def guessed(self) -> bool:
        """Whether the layout is preheat's own choice; constants are not fitted to such a run, for the choice was made by them."""
        return _FASTEST in self.assumed

    @property
    def sparse(self) -> bool:
        return dense_layers(self.model) < self.model.layers


@dataclass
class Runs:
    """The rows of a file."""

    used: list[Run] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> rows."""


def read_runs(file: Path) -> Runs:
    """Read a table of published runs.

    Raises:
        PreheatError: the file can't be read, or lacks a column that every row needs.
    """
    runs = Runs()
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                refuse(
                    "plan.runs",
                    f"no column {', '.join(missing)}",
                    "the columns of published runs",
                    "See docs/planner-accuracy.md",
                    file=file,
                )
            for row in reader:
                try:
                    runs.used.append(_run({key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}))
                except Skip as reason:
                    runs.skipped[str(reason)] += 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        refuse("plan.runs", f"can't read the table: {error}", "a CSV file in UTF-8", "Name another file", file=file)
    return runs


def _run(row: dict[str, str]) -> Run:
    if row.get("phase", "") not in ("", "pretrain", "sft"):
        raise Skip(f"not pretraining: {row['phase'][:40]}")
    gpu = _gpu(row)
    ranks = _required(row, "num_gpus", "the number of GPUs is not named")
    seq_len, assumed = _sequence(row, ranks)
    tensor, pipeline = _model_parallel(row, gpu)
    context = _whole(row, "CP") or 1
    replicas = ranks // (tensor * pipeline * context)
    if ranks % (tensor * pipeline * context):
        raise Skip("the layout does not divide the GPUs")
    if (named := _whole(row, "DP")) and named != replicas:
        raise Skip("the layout does not multiply to the GPUs")
    model = _model(row, pipeline)
    software = _software(row, gpu)
    parallel = _parallel(row, replicas, model, software).model_copy(update={"tensor": tensor, "pipeline": pipeline, "context": context})
    if ranks % (parallel.expert * parallel.expert_tensor * pipeline):
        raise Skip("the layout of the experts does not divide the GPUs")
    run = Run(
        id=row.get("id", ""),
        source=row["source"],
        name=row["model"],
        model=model,
        gpu=gpu,
        ranks=ranks,
        precision=_precision(row.get("precision", ""), gpu),
        software=software,
        seq_len=seq_len,
        micro_batch=_whole(row, "micro_batch") or 0,
        global_batch=0,
        parallel=parallel,
        tokens_per_s_per_gpu=None,
        no_throughput="",
        memory=_memory(row),
        memory_kind=row.get("memory_kind", ""),
        notes=row.get("notes", ""),
        assumed=assumed,
    )
    run = _with_batch(row, run, replicas)
    try:
        return replace(run, tokens_per_s_per_gpu=_throughput(row, run))
    except Skip as reason:
        if run.memory is None:
            raise
        return replace(run, no_throughput=str(reason))


def _model(row: dict[str, str], pipeline: int) -> Model:
    columns = {word: value for column, word in _COLUMNS.items() if (value := _whole(row, column))}
    try:
        return architecture(row["model"], columns, pipeline)
    except UnknownModel as reason:
        raise Skip(str(reason)) from None


def _sequence(row: dict[str, str], ranks: int) -> tuple[int, tuple[str, ...]]:
    """Tokens of a sample, named or by the row's other figures, and what was assumed for it."""
    if (named := _whole(row, "seq_len")) is not None:
        return named, ()
    rate, seconds, batch = (_number(row, name) for name in ("tokens_s_gpu", "step_time_s", "global_batch"))
    if rate and seconds and batch:
        found = rate * ranks * seconds / batch
        nearest = round(found / _SEQUENCE_UNIT) * _SEQUENCE_UNIT
        if nearest and abs(found / nearest - 1) < _EXACT:
            return nearest, (_LENGTH,)
    raise Skip("the sequence length is not named")


def _with_batch(row: dict[str, str], run: Run, replicas: int) -> Run:
    """The run with the samples of a step and of a forward pass: named, by the row's other figures, or assumed."""
    global_batch, assumed = _whole(row, "global_batch"), run.assumed
    if global_batch is None and (counted := _samples(row, run)):
        global_batch, assumed = counted, (*assumed, _BATCH)
    full = run.seq_len // run.parallel.context >= _FULL
    if run.micro_batch or full:
        micro_batch = run.micro_batch or 1
        if not run.micro_batch:
            assumed = (*assumed, _ONE_SAMPLE)
        if global_batch is None:
            if run.parallel.pipeline > 1:
                raise Skip("a pipeline without a global batch")
            accumulated = re.search(r"micro_num (\d{1,6})", run.notes)
            global_batch = micro_batch * replicas * (int(accumulated[1]) if accumulated else 1)
        return replace(run, micro_batch=micro_batch, global_batch=global_batch, assumed=assumed)
    if global_batch is None:
        raise Skip("neither micro-batch nor global batch is named")
    steps = StepModel(run.model, run.seq_len, run.gpu, run.precision, run.software)
    parallel, micro_batch = fastest(steps, run.parallel, global_batch, run.ranks)
    return replace(run, parallel=parallel, micro_batch=micro_batch, global_batch=global_batch, assumed=(*assumed, _FASTEST))


def _samples(row: dict[str, str], run: Run) -> int | None:
    """Samples of a step by how fast the run was and how long a step took."""
    rate, flops, seconds = (_number(row, name) for name in ("tokens_s_gpu", "tflops_gpu", "step_time_s"))
    if rate is None and flops is not None:
        rate = flops * 1e12 / _counted(run)
    if rate is None or seconds is None:
        return None
    return max(1, round(rate * run.ranks * seconds / run.seq_len))


def _memory(row: dict[str, str]) -> float | None:
    if (exact := _number(row, "memory_GiB")) is not None:
        return exact * 2**30
    printed = _number(row, "memory_GB_printed")
    return None if printed is None else printed * 1e9


def _gpu(row: dict[str, str]) -> Gpu:
    bare = re.sub(r"\(.*?\)", "", row["hardware"]).strip()
    if bare.upper().startswith("TPU"):
        raise Skip("not a GPU: TPU")
    try:
        gpu = find(bare)
    except PreheatError:
        raise Skip(f"unknown hardware: {bare[:40] or 'none named'}") from None
    if "bigscience" in row.get("path", "").lower():
        server = _JEAN_ZAY.get(gpu.generation, gpu.server)
        return replace(gpu, domain=server, server=server, network_bandwidth=4 * 12.5e9 / server)
    return gpu


def _software(row: dict[str, str], gpu: Gpu) -> str:
    """Which kind of program ran: by what the row calls its source, else by age and sharding."""
    said = f"{row['source']} {row.get('path', '')}".lower()
    if "bigscience" in said or gpu.generation == "volta":
        return "megatron-2021"
    if "megatron-lm" in said and gpu.generation == "ampere" and row.get("precision", "").upper().startswith("FP16"):
        return "megatron-2021"
    if any(name in said for name in ("foundry", "nanotron", "internevo", "nanogpt", "torchtitan", "olmo", "lingua")):
        return "pytorch"
    if any(name in said for name in ("megatron", "nemo", "nvidia")) or row.get("FSDP", "") in ("", "0"):
        return _bridge(row.get("ref", ""), "bridge" in said, gpu)
    return "pytorch"


def _bridge(ref: str, bridge: bool, gpu: Gpu) -> str:
    """Which Megatron: container 26.06 brought graphs of whole layers to Blackwell; later months and undated pages have them."""
    month = _month(ref) or (26 if bridge else 0, 7)
    new = month >= (26, 6) and (gpu.generation == "blackwell" or "container" not in ref.lower())
    return "megatron-2026" if new else "megatron"


def _month(ref: str) -> tuple[int, int] | None:
    """Year and month of NVIDIA's container or of the date that a row refers to; None when it names neither."""
    found = re.match(r"(?:20)?(\d\d)[.-](\d\d)\b", ref)
    return (int(found[1]), int(found[2])) if found else None


def _parallel(row: dict[str, str], replicas: int, model: Model, software: str) -> Parallel:
    """The layout but for the sizes of the dense mesh."""
    sharded, optimizer = row.get("FSDP", ""), row.get("dist_opt", "")
    sharding: Literal["none", "optimizer", "full"] = "none"
    if sharded not in ("", "0", "1", "N", "NO_SHARD"):
        sharding = "full"
    elif optimizer in ("Y", "ZeRO-1") or optimizer.startswith("zero1") or (not optimizer and software in ("megatron", "megatron-2026")):
        sharding = "optimizer"
    said = row.get("recompute", "").lower() or ("full" if software == "megatron-2021" else "none")
    kind: Literal["none", "selective", "full"] = "full" if said.startswith("full") else "selective" if "attn" in said else "none"
    virtual = _whole(row, "VP") or 1
    within = re.fullmatch(r"zero1=([1-9]\d{0,6})", optimizer)
    split = min(int(within[1]), replicas) if within else replicas
    return Parallel(
        virtual_pipeline=virtual,
        replicate=replicas // split if not replicas % split else 1,
        expert=_whole(row, "EP") or 1 if model.experts is not None else 1,
        expert_tensor=_whole(row, "ETP") or 1 if model.experts is not None else 1,
        sequence=(_whole(row, "TP") or 1) > 1 and software != "megatron-2021" and row.get("SP", "") != "N",
        sharding=sharding,
        schedule="interleaved" if virtual > 1 else "1f1b",
        recompute=Recompute(kind=kind),
    )


def _precision(said: str, gpu: Gpu) -> str:
    word = said.lower()
    if "fp4" in word:
        found = "fp4"
    elif "mx" in word or "finer" in word:
        found = "mxfp8" if "mxfp8" in gpu.peaks else "fp8"
    elif "fp8" in word:
        found = "fp8"
    elif "fp32" in word:
        found = "fp32"
    else:
        found = "fp16" if "fp16" in word or "bf16" not in gpu.peaks else "bf16"
    if found not in gpu.peaks:
        raise Skip(f"{gpu.name} does not multiply in {found}")
    try:
        Device.of(gpu, shipped().of(gpu.generation), shipped().common, shipped().program("megatron"), found)
    except PreheatError:
        raise Skip(f"no throughput of {found} is known for {gpu.name}") from None
    return found


def _throughput(row: dict[str, str], run: Run) -> float:
    """Tokens/s of a GPU from the first figure that the row states."""
    if "golden values" in run.source.lower():
        raise Skip("a functional test, timed under settings for reproducible numbers")
    peak = run.gpu.peak(run.precision)
    if rate := _number(row, "tokens_s_gpu"):
        found = rate
    elif (seconds := _number(row, "step_time_s")) and _whole(row, "global_batch"):
        found = run.global_batch * run.seq_len / seconds / run.ranks
    elif flops := _number(row, "tflops_gpu"):
        found = flops * 1e12 / _counted(run)
    elif share := _number(row, "mfu_pct"):
        found = share / 100 * peak / _counted(run)
    else:
        raise Skip("no throughput is stated")
    if found * flops_per_token(run.model, run.seq_len).causal > _ROOM * peak:
        raise Skip("the stated figure lies above the GPU's peak")
    return found


def _counted(run: Run) -> float:
    """FLOPs per token as the source counts them: Megatron-LM's causal half since 2025, the full square before and elsewhere."""
    model = run.model
    if "megatron-bridge" in run.source.lower():
        return flops_per_token(model, run.seq_len, run.parallel.tensor).megatron
    if run.gpu.generation == "volta":
        return 8.0 * parameters(model).total  # BigScience's script before its counting was improved in 2022
    pairs = 6 * model.layers * model.heads * (head_dim(model) + value_dim(model)) * run.seq_len
    square = 6 * parameters(model).multiplied + pairs
    again = run.software == "megatron-2021" and run.parallel.recompute.kind == "full"
    return square * 4 / 3 if again else square  # those programs counted what they computed again


def _model_parallel(row: dict[str, str], gpu: Gpu) -> tuple[int, int]:
    """Tensor and pipeline size; of a product alone, tensor parallelism gets as much as a server holds (arXiv 2104.04473, takeaway 1)."""
    tensor, pipeline = _whole(row, "TP"), _whole(row, "PP")
    if tensor is not None and pipeline is not None:
        return tensor, pipeline
    product = re.search(r"TP\*PP=(\d{1,6})", row.get("notes", ""))
    if product is None or int(product[1]) < 1:
        raise Skip("the layout is not named")
    tensor = gcd(int(product[1]), gpu.server)
    return tensor, int(product[1]) // tensor


def _required(row: dict[str, str], column: str, reason: str) -> int:
    value = _whole(row, column)
    if value is None:
        raise Skip(reason)
    return value


def _whole(row: dict[str, str], column: str) -> int | None:
    value = _number(row, column)
    return int(value) if value is not None and value == int(value) and value < 1e12 else None


def _number(row: dict[str, str], column: str) -> float | None:
    """A positive number, or None for a blank, a text or something else that is none."""
    text = row.get(column, "").replace(",", "").replace("_", "").rstrip("%")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None

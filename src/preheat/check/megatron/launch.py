"""Rules about what surrounds the arguments: launcher, environment, data, tokenizer and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.batch import size

_SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")


def _launcher(settings: Settings, *names: str) -> str | None:
    """The value of a torchrun option; dashes and underscores are alike."""
    for argument in settings.command.launcher:
        if argument.flag.removeprefix("--").replace("-", "_") in names:
            return argument.values[0] if argument.values else ""
    return None


@hazard("launcher")
def launcher(settings: Settings) -> Iterator[Finding]:
    """The launcher starts one process per GPU.

    Example: torchrun --nproc_per_node=8 --nnodes=4 for --gpus 64.
    """
    per_node, nodes = _launcher(settings, "nproc_per_node"), _launcher(settings, "nnodes") or "1"
    if per_node and per_node.isdigit() and nodes.isdigit() and int(per_node) * int(nodes) != settings.gpus:
        got = f"the launcher starts {per_node} x {nodes} = {int(per_node) * int(nodes)} processes"
        yield Finding("--nproc-per-node", got, f"--gpus is {settings.gpus}", "Make them agree")


@hazard("rendezvous")
def rendezvous(settings: Settings) -> Iterator[Finding]:
    """Several nodes need a place to meet: without an endpoint torchrun looks for the others on its own node, and waits for ever.

    Stricter than Megatron-LM's arguments, which say nothing about the launcher.

    Example: torchrun --nproc_per_node=8 --nnodes=4 without --node-rank and --master-addr, or --rdzv-endpoint.
    """
    nodes = _launcher(settings, "nnodes")
    meets = _launcher(settings, "rdzv_endpoint", "master_addr") is not None or {"PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"} & set(
        settings.command.environment
    )
    if nodes and nodes != "1" and not meets:
        yield Finding(
            "--nnodes", f"{nodes} nodes and no --rdzv-endpoint or --master-addr", "", "Add --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
        )


@hazard("connections", "warning", absence=True)
def connections(settings: Settings) -> Iterator[Finding]:
    """Tensor and context parallelism before Blackwell insist on CUDA_DEVICE_MAX_CONNECTIONS=1; without it the program ends.

    Example: a launch script that does not export it.
    """
    split = size(settings, "tensor_model_parallel_size") > 1 or size(settings, "context_parallel_size") > 1
    sharded = settings["use_torch_fsdp2"] or settings["use_megatron_fsdp"]
    value = settings.command.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    flag = "--tensor-model-parallel-size"
    if settings.command.form == "script" and split and not sharded and value != "1":
        yield Finding(flag, "CUDA_DEVICE_MAX_CONNECTIONS is not set here", "1 before Blackwell", "Add export CUDA_DEVICE_MAX_CONNECTIONS=1")


@hazard("connections-fsdp")
def connections_fsdp(settings: Settings) -> Iterator[Finding]:
    """FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1, which tensor parallelism asks for: it wants more streams than one.

    Example: export CUDA_DEVICE_MAX_CONNECTIONS=1 with --use-megatron-fsdp.
    """
    for flag in ("--use-torch-fsdp2", "--use-megatron-fsdp"):
        if settings[flag.removeprefix("--").replace("-", "_")] and settings.command.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            yield Finding(flag, f"CUDA_DEVICE_MAX_CONNECTIONS=1 with {flag}", "another value or none", "Remove it")


@hazard("deterministic")
def deterministic(settings: Settings) -> Iterator[Finding]:
    """Deterministic mode goes without the kernels that add in any order.

    Example: --deterministic-mode with --cross-entropy-loss-fusion; since core 0.19 also --tp-comm-overlap, before --use-flash-attn.
    """
    against = ["cross_entropy_loss_fusion", "tp_comm_overlap" if settings.since("0.19") else "use_flash_attn"]
    for name in against:
        if settings["deterministic_mode"] and settings[name]:
            flag = "--" + name.replace("_", "-")
            yield Finding("--deterministic-mode", f"--deterministic-mode with {flag}", "", f"Remove {flag}")


@hazard("deterministic-network", "warning")
def deterministic_network(settings: Settings) -> Iterator[Finding]:
    """Deterministic mode insists on an NCCL algorithm that adds in one order; without it in the environment the program ends.

    Example: --deterministic-mode in a script that does not export NCCL_ALGO=Ring.
    """
    algorithm, known = settings.command.environment.get("NCCL_ALGO"), ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
    if settings["deterministic_mode"] and settings.command.form == "script" and algorithm not in known:
        got = f"NCCL_ALGO is {algorithm}" if algorithm else "NCCL_ALGO is not set here"
        yield Finding("--deterministic-mode", got, f"one of {', '.join(known)}", "Add export NCCL_ALGO=Ring")


@hazard("seed")
def seed(settings: Settings) -> Iterator[Finding]:
    """The seed is at least 1 and, with 100 added for each pipeline stage, below 2^32.

    Megatron-LM's validation lets it through; the start fails. Example: --seed 0.
    """
    value, most = settings["seed"], 2**32 - 1 - 100 * (size(settings, "pipeline_model_parallel_size") - 1)
    if value is not None and not 0 < value <= most:
        yield Finding("--seed", f"--seed {value}", f"1 to {most}", "Choose another seed")


@hazard("tokenizer", absence=True)
def tokenizer(settings: Settings) -> Iterator[Finding]:
    """A tokenizer has the files of its kind; pretrain_gpt.py takes GPT-2's when none is named.

    Megatron-LM's validation lets it through; building the tokenizer fails. Example: --vocab-file tokenizer.model without
    --tokenizer-type; --tokenizer-type HuggingFaceTokenizer without --tokenizer-model.
    """
    kind, model, vocabulary = settings["tokenizer_type"], settings["tokenizer_model"], settings["vocab_file"]
    if kind in (*_SENTENCEPIECE, "TikTokenizer", "HuggingFaceTokenizer") and not model:
        yield Finding("--tokenizer-model", f"--tokenizer-type {kind} without --tokenizer-model", "", "Give --tokenizer-model")
    elif kind == "NullTokenizer" and not settings["vocab_size"]:
        yield Finding("--vocab-size", "--tokenizer-type NullTokenizer without --vocab-size", "", "Give --vocab-size")
    if vocabulary and vocabulary.endswith(".model"):
        got = f"--vocab-file {vocabulary}"
        yield Finding("--vocab-file", got, "a GPT-2 vocab.json", f"Write --tokenizer-type Llama2Tokenizer --tokenizer-model {vocabulary}")


@hazard("tokenizer-missing", "warning", absence=True)
def tokenizer_missing(settings: Settings) -> Iterator[Finding]:
    """Without --tokenizer-type pretrain_gpt.py takes GPT-2's, whatever the model is.

    Example: a LLaMA command that names none trains on 50,257 ids.
    """
    if settings["tokenizer_type"] is None and not settings.has("tokenizer_type"):
        want = "GPT2BPETokenizer is taken" + (f" for a vocabulary of {settings['vocab_size']}" if settings["vocab_size"] else "")
        yield Finding("--tokenizer-type", "no --tokenizer-type", want, "Give --tokenizer-type and its files")


@hazard("vocabulary-files", "warning", absence=True)
def vocabulary_files(settings: Settings) -> Iterator[Finding]:
    """GPT-2's tokenizer reads a vocabulary and a merges file; without them it is fetched from the network on every node.

    Example: --tokenizer-type GPT2BPETokenizer alone.
    """
    if settings["tokenizer_type"] == "GPT2BPETokenizer" and not (settings["vocab_file"] and settings["merge_file"]):
        yield Finding("--tokenizer-type", "GPT2BPETokenizer without --vocab-file and --merge-file", "", "Give both")


@hazard("data-source", absence=True)
def data_source(settings: Settings) -> Iterator[Finding]:
    """The text comes from one place.

    Example: --mock-data with --data-path; neither of them (validation lets that through, the dataset then has nothing to read).
    """
    per_split = [settings[name] for name in ("train_data_path", "valid_data_path", "test_data_path", "per_split_data_args_path")]
    sources = [bool(settings["mock_data"]), bool(settings["data_path"] or settings["data_args_path"]), any(per_split)]
    if sum(sources) > 1:
        yield Finding(
            "--data-path", "more than one source of data", "one of them", "Keep one of --data-path, --mock-data and --train-data-path"
        )
    if not any(sources) and not settings.has("data_path") and not settings["perform_rl_step"]:
        yield Finding("--data-path", "no data: neither --data-path nor --mock-data", "", "Give --data-path")


@hazard("data-weights")
def data_weights(settings: Settings) -> Iterator[Finding]:
    """A blend alternates weights and paths; an odd number of entries is read as paths only.

    Example: --data-path 0.7 a 0.3 is three paths, two of them called 0.7 and 0.3.
    """
    entries = settings["data_path"] or []
    numbers = [entry for entry in entries if _is_number(entry)]
    if numbers and (len(entries) % 2 or numbers != entries[::2]):
        got = f"{len(numbers)} numbers among {len(entries)} entries of --data-path"
        yield Finding("--data-path", got, "weight path weight path ...", "Give each path its weight")


@hazard("split", "warning", absence=True)
def split(settings: Settings) -> Iterator[Finding]:
    """Without --split the share of validation and test data is the old default 969,30,1.

    Example: --data-path alone.
    """
    if settings["data_path"] and settings["split"] is None:
        yield Finding("--split", "no --split: 969,30,1 is taken", "", "Say which shares train, for instance --split 99,1,0")


@hazard("save-interval", absence=True)
def save_interval(settings: Settings) -> Iterator[Finding]:
    """Where to save needs how often.

    Example: --save /checkpoints without --save-interval.
    """
    if settings["save"] is not None and (settings["save_interval"] or 0) < 1:
        yield Finding("--save", "--save without --save-interval", "", "Give --save-interval")


@hazard("resume", "warning", absence=True)
def resume(settings: Settings) -> Iterator[Finding]:
    """A run that saves also loads, from the same place: otherwise every restart begins from scratch.

    Example: --save /checkpoints/a without --load /checkpoints/a.
    """
    if settings["save"] and not settings["load"] and not settings["pretrained_checkpoint"]:
        yield Finding(
            "--load", f"--save {settings['save']} without --load", "a restart begins from scratch", f"Add --load {settings['save']}"
        )
    if not settings["save"] and settings.command.form == "script":
        yield Finding("--save", "no --save: nothing is kept", "", "Give --save, --save-interval and --load")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Rules about GPUs: the two meshes, the pipeline split, sequence and context parallelism, and what overlaps with what."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.architecture import expert_width, ffn_hidden
from preheat.megatron.batch import expert_tensor, full_batch, model_ranks, size
from preheat.megatron.stages import read_layout, stage_layers

_VIRTUAL = ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout")
_SPLIT = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)


def _dest(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@hazard("world")
def world(settings: Settings) -> Iterator[Finding]:
    """The GPUs are a whole number of replicas of tensor x pipeline x context.

    Example: 12 GPUs with --tensor-model-parallel-size 8.
    """
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    ranks = model_ranks(settings)
    if settings.gpus % ranks:
        tensor, pipeline, context = (size(settings, name) for name in names)
        got = f"{settings.gpus} GPUs for tensor {tensor} x pipeline {pipeline} x context {context} = {ranks}"
        legal = sorted({max(1, settings.gpus // ranks) * ranks, (settings.gpus // ranks + 1) * ranks})
        yield Finding("--tensor-model-parallel-size", got, "a multiple", f"Use {' or '.join(map(str, legal))} GPUs, or smaller sizes")


@hazard("expert-world")
def expert_world(settings: Settings) -> Iterator[Finding]:
    """The same GPUs are a whole number of expert-tensor x expert x pipeline: experts fold over the replicas of the dense layers.

    Megatron-LM's validation lets it through; starting the process groups fails. Expert-tensor is the tensor size when it is not given.
    Example: DeepSeek-V3 on 1,024 GPUs with tensor 2, pipeline 16, expert 64 needs 2,048 GPUs unless --expert-tensor-parallel-size is 1.
    """
    if not settings["num_experts"]:
        return
    tensor, expert, pipeline = (
        expert_tensor(settings),
        size(settings, "expert_model_parallel_size"),
        size(settings, "pipeline_model_parallel_size"),
    )
    ranks = tensor * expert * pipeline
    if settings.gpus % ranks:
        got = f"{settings.gpus} GPUs for expert-tensor {tensor} x expert {expert} x pipeline {pipeline} = {ranks}"
        fix = (
            "Set --expert-tensor-parallel-size 1"
            if tensor > 1 and settings.gpus % (expert * pipeline) == 0
            else "Use a smaller expert size"
        )
        yield Finding("--expert-model-parallel-size", got, "a multiple", fix)


@hazard("expert-count")
def expert_count(settings: Settings) -> Iterator[Finding]:
    """Expert parallelism needs experts, and a whole number on each rank.

    Example: 8 experts on --expert-model-parallel-size 16.
    """
    expert, count = size(settings, "expert_model_parallel_size"), settings["num_experts"]
    flag = "--expert-model-parallel-size"
    if expert > 1 and not count:
        yield Finding(flag, f"{flag} {expert} without --num-experts", "", "Give --num-experts or remove it")
    elif count and count % expert:
        legal = [value for value in range(1, count + 1) if count % value == 0]
        yield Finding(flag, f"{count} experts on {expert} expert ranks", "a whole number each", f"Use one of {legal}")


@hazard("heads-tensor")
def heads_tensor(settings: Settings) -> Iterator[Finding]:
    """Tensor parallelism splits attention by heads, and groups of key and value heads divide or multiply its size.

    Example: 32 heads on 12 tensor ranks; 3 groups on 4.
    """
    tensor, heads = size(settings, "tensor_model_parallel_size"), settings["num_attention_heads"]
    if heads and heads % tensor:
        legal = [value for value in range(1, heads + 1) if heads % value == 0]
        yield Finding(
            "--tensor-model-parallel-size", f"{heads} heads on {tensor} tensor ranks", "a whole number each", f"Use one of {legal}"
        )
    groups = settings["num_query_groups"]
    if settings["group_query_attention"] and groups and groups % tensor and tensor % groups:
        yield Finding("--num-query-groups", f"{groups} query groups on {tensor} tensor ranks", "a multiple or a divisor", "Change one")


@hazard("ffn-tensor")
def ffn_tensor(settings: Settings) -> Iterator[Finding]:
    """Tensor parallelism splits the inner width of the feed-forward layers.

    Megatron-LM's validation lets it through; building the model fails. Example: --ffn-hidden-size 11000 on 16 tensor ranks.
    """
    tensor, width = size(settings, "tensor_model_parallel_size"), ffn_hidden(settings)
    if width and width % tensor:
        yield Finding("--ffn-hidden-size", f"a feed-forward width of {width} on {tensor} tensor ranks", "a whole number each", "Change one")
    inner = expert_width(settings)
    if settings["num_experts"] and inner and inner % expert_tensor(settings):
        got = f"an expert width of {inner} on {expert_tensor(settings)} expert-tensor ranks"
        yield Finding("--moe-ffn-hidden-size", got, "a whole number each", "Change one")


@hazard("pipeline-split")
def pipeline_split(settings: Settings) -> Iterator[Finding]:
    """Every layer lies on a pipeline stage, and every stage has as many, unless the split is given.

    Example: 126 layers on 8 stages; with a slot each for embedding and loss they are 128.
    """
    if settings["hybrid_layer_pattern"] or not settings["num_layers"]:
        return
    try:
        stage_layers(settings)
    except (ValueError, ZeroDivisionError) as error:
        fix = "Give --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, or --pipeline-model-parallel-layout"
        layers, stages = settings["num_layers"], size(settings, "pipeline_model_parallel_size")
        if (layers + 2) % stages == 0 and layers % stages:
            fix = "Add --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
        yield Finding("--pipeline-model-parallel-size", str(error), "a whole number each", fix)


@hazard("pipeline-twice")
def pipeline_twice(settings: Settings) -> Iterator[Finding]:
    """The pipeline split is said in one way.

    Example: --num-layers-per-virtual-pipeline-stage with --num-virtual-stages-per-pipeline-rank; a layout with --account-for-*.
    """
    ways = [flag for flag in _VIRTUAL if settings[_dest(flag)] is not None]
    if len(ways) > 1:
        yield Finding(ways[1], " and ".join(ways), "one of them", "Remove one")
    extra = [flag for flag in _SPLIT if settings[_dest(flag)]]
    if settings["pipeline_model_parallel_layout"] and extra:
        yield Finding(extra[0], f"{extra[0]} beside --pipeline-model-parallel-layout", "one of them", "Remove one")
    uneven, slots = [flag for flag in extra if "decoder" in flag], [flag for flag in extra if "account" in flag]
    if uneven and slots:
        yield Finding(slots[0], f"{slots[0]} beside {uneven[0]}", "one of them", "Remove one")
    if uneven and settings["num_layers_per_virtual_pipeline_stage"]:
        yield Finding(_VIRTUAL[0], f"{_VIRTUAL[0]} with an uneven split", "", "Use --num-virtual-stages-per-pipeline-rank")


@hazard("pipeline-layout")
def pipeline_layout(settings: Settings) -> Iterator[Finding]:
    """A layout text has the embedding first, the loss last, and a multi-token prediction layer where one is asked for.

    Example: "Et*3|(tt|)*29m|L". Source: the layout parser of megatron-core.
    """
    text = settings["pipeline_model_parallel_layout"]
    if not text:
        return
    flag = "--pipeline-model-parallel-layout"
    try:
        pieces = read_layout(text)
    except ValueError:
        return  # reported by pipeline-split
    letters = "".join(pieces)
    if not pieces[0].startswith("E") or letters.count("E") != 1:
        yield Finding(flag, f"the layout {text[:60]!r} does not start with E", "the embedding is first, once", "Start it with E")
    if not pieces[-1].endswith("L") or letters.count("L") != 1:
        yield Finding(flag, f"the layout {text[:60]!r} does not end with L", "the loss is last, once", "End it with L")
    predicted = settings["mtp_num_layers"] or 0
    if letters.count("m") != predicted:
        yield Finding(flag, f"{letters.count('m')} m in the layout", f"--mtp-num-layers is {predicted}", "Make them agree")


@hazard("virtual-pipeline")
def virtual_pipeline(settings: Settings) -> Iterator[Finding]:
    """Virtual stages need a pipeline: of two ranks, or of three when sends do not overlap.

    Example: --num-layers-per-virtual-pipeline-stage 2 with --no-overlap-p2p-communication on 2 stages.
    """
    stages = size(settings, "pipeline_model_parallel_size")
    asked = settings["num_layers_per_virtual_pipeline_stage"]
    virtual = (settings["num_virtual_stages_per_pipeline_rank"] or 1) > 1 or bool(asked and stages * asked < (settings["num_layers"] or 0))
    needed = 2 if settings["overlap_p2p_comm"] else 3
    if virtual and stages < needed:
        got = f"virtual stages on {stages} pipeline stage{'s' if stages > 1 else ''}"
        fix = "Remove --no-overlap-p2p-communication" if stages == 2 else "Remove them"
        yield Finding("--pipeline-model-parallel-size", got, f"at least {needed}", fix)


@hazard("context-chunks")
def context_chunks(settings: Settings) -> Iterator[Finding]:
    """Context parallelism cuts each sequence in 2 x context chunks, so that early and late positions balance.

    Example: 4,090 tokens with --context-parallel-size 8. Source: arXiv 2407.21783, section 3.3.2.
    """
    context, seq_len = size(settings, "context_parallel_size"), settings["seq_length"]
    if context > 1 and seq_len and seq_len % (2 * context):
        near = seq_len // (2 * context) * 2 * context
        got = f"{seq_len} tokens in 2 x context = {2 * context} chunks"
        yield Finding("--seq-length", got, "a whole number each", f"Use {near} or {near + 2 * context}")


@hazard("sequence-parallel-off")
def sequence_parallel_off(settings: Settings) -> Iterator[Finding]:
    """Sequence parallelism splits what tensor parallelism repeats; without tensor parallelism it is switched off.

    Stricter than Megatron-LM, which warns. Example: --sequence-parallel with --tensor-model-parallel-size 1.
    """
    if settings["sequence_parallel"] and size(settings, "tensor_model_parallel_size") == 1:
        yield Finding("--sequence-parallel", "--sequence-parallel on one tensor rank has no effect", "", "Remove it")


@hazard("expert-sequence", absence=True)
def expert_sequence(settings: Settings) -> Iterator[Finding]:
    """Experts under tensor parallelism need sequence parallelism: every tensor rank routes its own tokens.

    Megatron-LM's validation lets it through; the first forward pass in training fails. Example: Mixtral with tensor 4.
    """
    if settings["num_experts"] and size(settings, "tensor_model_parallel_size") > 1 and not settings["sequence_parallel"]:
        tensor = size(settings, "tensor_model_parallel_size")
        yield Finding("--num-experts", f"experts on {tensor} tensor ranks without --sequence-parallel", "", "Add --sequence-parallel")


@hazard("overlap", absence=True)
def overlap(settings: Settings) -> Iterator[Finding]:
    """Overlapped communication needs what it overlaps with.

    Example: --overlap-param-gather without --overlap-grad-reduce or without --use-distributed-optimizer.
    """
    flag = "--overlap-param-gather"
    if settings["overlap_param_gather"]:
        sharded = settings["use_distributed_optimizer"] or settings["use_megatron_fsdp"] or settings["optimizer"] == "dist_muon"
        if not sharded:
            yield Finding(flag, f"{flag} without --use-distributed-optimizer", "", "Add --use-distributed-optimizer")
        if not settings["overlap_grad_reduce"]:
            yield Finding(flag, f"{flag} without --overlap-grad-reduce", "", "Add --overlap-grad-reduce")
    off = not settings["sequence_parallel"] or size(settings, "tensor_model_parallel_size") == 1
    if settings["tp_comm_overlap"] and off:
        yield Finding("--tp-comm-overlap", "--tp-comm-overlap without sequence parallelism", "", "Add --sequence-parallel")


@hazard("fsdp")
def fsdp(settings: Settings) -> Iterator[Finding]:
    """PyTorch's FSDP2 goes with no pipeline, no experts, no distributed optimizer, no fused accumulation and no tied embeddings.

    Example: --use-torch-fsdp2 with --pipeline-model-parallel-size 2.
    """
    if settings["use_torch_fsdp2"]:
        flag = "--use-torch-fsdp2"
        against = {
            "pipeline parallelism": size(settings, "pipeline_model_parallel_size") > 1,
            "expert parallelism": size(settings, "expert_model_parallel_size") > 1,
            "--use-distributed-optimizer": bool(settings["use_distributed_optimizer"]),
            "fused gradient accumulation (add --no-gradient-accumulation-fusion)": bool(settings["gradient_accumulation_fusion"]),
            "tied embeddings (add --untie-embeddings-and-output-weights)": not settings["untie_embeddings_and_output_weights"],
            "fp16": bool(settings["fp16"]),
            f"--ckpt-format {settings['ckpt_format']}": settings["ckpt_format"] not in ("torch_dist", "torch_dcp"),
        }
        for what in [what for what, present in against.items() if present]:
            yield Finding(flag, f"{flag} with {what}", "", "Remove one")
    if settings["use_megatron_fsdp"] and settings["ckpt_format"] != "fsdp_dtensor":
        yield Finding("--use-megatron-fsdp", "--use-megatron-fsdp with another checkpoint format", "", "Add --ckpt-format fsdp_dtensor")


@hazard("offload", absence=True)
def offload(settings: Settings) -> Iterator[Finding]:
    """An optimizer on the CPU goes through the precision-aware optimizer.

    Example: --optimizer-cpu-offload alone.
    """
    if settings["optimizer_cpu_offload"] and not settings["use_precision_aware_optimizer"]:
        flag = "--optimizer-cpu-offload"
        yield Finding(flag, f"{flag} without --use-precision-aware-optimizer", "", "Add --use-precision-aware-optimizer")


@hazard("tensor-node", "warning")
def tensor_node(settings: Settings) -> Iterator[Finding]:
    """Tensor parallelism stays inside a node of 8 GPUs: every layer waits for it, and between nodes links are many times slower.

    Example: --tensor-model-parallel-size 16. Source: arXiv 2104.04473, section 5.
    """
    tensor = size(settings, "tensor_model_parallel_size")
    if tensor > 8:
        yield Finding(
            "--tensor-model-parallel-size", f"{tensor} tensor ranks", "a node has 8 GPUs", "Use at most 8 and more pipeline stages"
        )


@hazard("optimizer-unsharded", "warning", absence=True)
def optimizer_unsharded(settings: Settings) -> Iterator[Finding]:
    """Without the distributed optimizer every replica holds 12 bytes of optimizer state per parameter, instead of 12 / replicas.

    Example: a 70B model on 64 GPUs: 79 GB of states per GPU instead of 40. Source: Megatron-LM's theoretical_memory_usage.
    """
    replicas = settings.gpus // model_ranks(settings)
    sharded = settings["use_distributed_optimizer"] or settings["use_torch_fsdp2"] or settings["use_megatron_fsdp"]
    if replicas > 1 and not sharded and settings["optimizer"] == "adam":
        got = f"{replicas} replicas with full optimizer state each"
        yield Finding("--use-distributed-optimizer", got, "", "Add --use-distributed-optimizer")


@hazard("replicas", "note")
def replicas(settings: Settings) -> Iterator[Finding]:
    """How many replicas there are of the dense layers and of the experts: two divisions of the same GPUs.

    Example: Mixtral 8x7B on 64 GPUs with pipeline 4 and expert 8 has 16 dense and 2 expert replicas; expert parallelism never divides the
    dense ones.
    """
    dense = model_ranks(settings)
    experts = expert_tensor(settings) * size(settings, "expert_model_parallel_size") * size(settings, "pipeline_model_parallel_size")
    if settings.gpus % dense or (settings["num_experts"] and settings.gpus % experts):
        return
    count = settings.gpus // dense
    got = f"{count} replica{'s' if count > 1 else ''} on {settings.gpus} GPUs"
    got += f", and {settings.gpus // experts} of the experts" if settings["num_experts"] else ""
    micro_batches, rest = divmod(full_batch(settings), size(settings, "micro_batch_size") * count)
    if not rest:
        got += f"; {micro_batches} micro-batch{'es' if micro_batches > 1 else ''} a step"
    yield Finding("--micro-batch-size", got)

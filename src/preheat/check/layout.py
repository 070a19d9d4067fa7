"""Rules about the split over ranks: both meshes, tensor, pipeline, context and sequence parallelism, sharding, recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.arithmetic import balanced_split, kv_heads, padded_vocab, pipeline_split
from preheat.arithmetic.pipeline import V_SHAPED
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject, divisors


@rule("layout.ranks")
def ranks(subject: Subject) -> Iterator[Finding]:
    """The ranks hold both meshes a whole number of times.

    Dense layers lie on data x context x tensor ranks of each pipeline stage, experts on expert-data x expert x expert_tensor ranks of the
    same stage. The expert size never divides the dense data-parallel size: DeepSeek-V3 on 1,024 GPUs with tensor 2, pipeline 16 and
    expert 64 has 32 dense replicas and 1 of the experts.
    Example: the same with expert_tensor = 2 takes 2 x 64 x 16 = 2,048 ranks; expert = 3 on 8 GPUs.
    Source: Megatron-LM 0.19.2, parallel_state; cases A05 (pytorch/torchtitan pull 4258), A06 (NVIDIA-NeMo/Megatron-Bridge issue 546).
    """
    count, parallel = subject.ranks, subject.parallel
    if count is None:
        return
    seen = set()
    for index, stage in [(None, None), *enumerate(subject.recipe.stage)]:
        dense = parallel.tensor * parallel.pipeline * subject.context(stage)
        if count % dense and dense not in seen:
            seen.add(dense)
            key = subject.ranks_key if stage is None or stage.context is None else f"stage.{index}.context"
            product = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {subject.context(stage)} = {dense}"
            yield Finding(key, f"{count} ranks are no multiple of {product}", "", f"Use {_near(count, dense)} ranks or change the layout")
    experts = parallel.expert_tensor * parallel.expert * parallel.pipeline
    if count % experts:
        product = f"expert_tensor {parallel.expert_tensor} x expert {parallel.expert} x pipeline {parallel.pipeline} = {experts}"
        yield Finding(
            "parallel.expert", f"{count} ranks are no multiple of {product}", "", f"Use {_near(count, experts)} ranks or change the layout"
        )


@rule("layout.tensor")
def tensor(subject: Subject) -> Iterator[Finding]:
    """Tensor parallelism cuts attention by heads and feed-forward layers by their inner width, so it divides both.

    Key/value heads may also divide the tensor size: each is then kept by several ranks.
    Example: heads = 12 with tensor = 8; legal are 1, 2, 3, 4, 6 and 12.
    Source: arXiv 1909.08053; Megatron-LM 0.19.2, TransformerConfig; case A04 (vllm-project/vllm pull 52535).
    """
    size = subject.parallel.tensor
    legal = [n for n in range(1, subject.model.heads + 1) if not any(_cut(subject, n))]
    server = [n for n in legal if n <= 8]
    for key, what, why in _cut(subject, size):
        shown = ", ".join(str(n) for n in server)
        fix = f"Use a tensor size of {shown}" + (
            f" (within one server of 8; also {_list(legal[len(server) :])})" if legal[len(server) :] else ""
        )
        yield Finding("parallel.tensor" if subject.given("parallel.tensor") else key, f"{what} over tensor {size}", why, fix)


@rule("layout.kv-copies", "note")
def copies(subject: Subject) -> Iterator[Finding]:
    """Fewer key/value heads than tensor-parallel ranks: each head is computed and kept on several of them.

    Example: kv_heads = 2 with tensor = 8: four ranks share a head.
    Source: Megatron-LM 0.19.2, TransformerConfig (num_query_groups is a multiple or a divisor of the tensor size).
    """
    groups, size = kv_heads(subject.model), subject.parallel.tensor
    if subject.model.mla is None and groups < size and size % groups == 0:
        got = f"{groups} kv_heads on {size} tensor-parallel ranks"
        yield Finding("parallel.tensor", got, f"{size // groups} ranks hold the same head", f"tensor = {groups} would share nothing")


@rule("layout.pipeline")
def pipeline(subject: Subject) -> Iterator[Finding]:
    """The pieces of the pipeline add up to the layers of the model, and each rank has something to do.

    Rounded down, 30 layers on 4 stages are 28: a model that nobody asked for. An uneven split is said with `pipeline_layers`, one number
    for each of the pipeline x virtual_pipeline pieces.
    Only the ranks of the embedding and of the head may go without layers.
    Example: layers = 30 with pipeline = 4; pipeline_layers = [20] with pipeline = 1; pipeline_layers = [8, 0, 0, 8].
    Source: cases A01 (NVIDIA/Megatron-LM issue 1304), A03 (NVIDIA/Megatron-LM issue 1778).
    """
    parallel, layers = subject.parallel, subject.model.layers
    pieces = parallel.pipeline * parallel.virtual_pipeline
    split = parallel.pipeline_layers
    if parallel.pipeline == 1:
        if split is not None and split != (layers,):
            got = f"pipeline_layers {list(split)} has no effect with pipeline = 1"
            yield Finding("parallel.pipeline_layers", got, f"the model keeps its {layers} layers", f"Remove it, or write [{layers}]")
    elif split is not None:
        if len(split) != pieces:
            want = f"{parallel.pipeline} stages x {parallel.virtual_pipeline} pieces = {pieces}"
            yield Finding("parallel.pipeline_layers", f"{len(split)} numbers", want, "Give one for each piece")
        if sum(split) != layers:
            want = f"the model has {layers} layers"
            yield Finding("parallel.pipeline_layers", f"{' + '.join(map(str, split))} = {sum(split)}", want, "Make them add up")
        for rank in _idle_ranks(subject):
            got = f"pipeline rank {rank} has no layers, no embedding and no head"
            yield Finding("parallel.pipeline_layers", got, "something to do", "Give it a layer or use fewer stages")
    elif layers % pieces:
        product = f"{parallel.pipeline} pipeline stages" + (f" x {parallel.virtual_pipeline}" if parallel.virtual_pipeline > 1 else "")
        legal, odd = divisors(layers), layers % pieces
        shown = ""
        if pieces <= min(layers, 32):
            shown = f", or say where the odd ones go: pipeline_layers = {list(balanced_split(layers, pieces))}"
        yield Finding(
            "parallel.pipeline", f"{layers} layers over {product}", f"{odd} layers are left over", f"Use one of {_list(legal)}{shown}"
        )


@rule("layout.pipeline-order")
def order(subject: Subject) -> Iterator[Finding]:
    """The pipeline's schedule, its stages and its virtual pieces belong together.

    Several pieces a rank are what an interleaved schedule is, and two of them what a V-shaped one is; without a pipeline neither has an
    effect; DualPipe pairs the ranks.
    Example: virtual_pipeline = 4 with schedule = "1f1b"; schedule = "dualpipe" with pipeline = 1.
    Source: arXiv 2104.04473, section 2.2; arXiv 2412.19437, section 3.2.1; arXiv 2405.15362 (V-shaped schedules).
    """
    parallel = subject.parallel
    if parallel.pipeline == 1:
        if parallel.virtual_pipeline > 1:
            got = f"virtual_pipeline {parallel.virtual_pipeline} has no effect with pipeline = 1"
            yield Finding("parallel.virtual_pipeline", got, "", "Remove it")
        if parallel.schedule != "1f1b":
            yield Finding("parallel.schedule", f'schedule "{parallel.schedule}" has no effect with pipeline = 1', "", "Remove it")
        return
    if parallel.virtual_pipeline > 1 and parallel.schedule in ("1f1b", "dualpipe"):
        got = f'virtual_pipeline {parallel.virtual_pipeline} with schedule "{parallel.schedule}"'
        yield Finding("parallel.virtual_pipeline", got, "it runs one piece a rank and direction", 'Set schedule = "interleaved"')
    if parallel.schedule in V_SHAPED and parallel.virtual_pipeline != 2:
        got = f'schedule "{parallel.schedule}" with virtual_pipeline {parallel.virtual_pipeline}'
        yield Finding("parallel.schedule", got, "two pieces a rank", "Set virtual_pipeline = 2")
    if parallel.schedule == "interleaved" and parallel.virtual_pipeline == 1:
        yield Finding("parallel.schedule", 'schedule "interleaved" with one piece a rank', "at least 2", "Set virtual_pipeline")
    if parallel.schedule == "dualpipe" and parallel.pipeline % 2:
        yield Finding("parallel.pipeline", f"DualPipe on {parallel.pipeline} stages", "an even number", "Change parallel.pipeline")


@rule("layout.context")
def context(subject: Subject) -> Iterator[Finding]:
    """Context parallelism cuts a sequence in 2 x context chunks, and rank i takes chunks i and 2 x context - 1 - i, to share causal work.

    Rounded down, tokens would be lost.
    Example: sequences of 8,190 tokens with context = 4 leave 6 over from 8 chunks.
    Source: arXiv 2407.21783, section 3.3.2; case A10 (fla-org/flash-linear-attention issue 1092).
    """
    for index, stage, key, seq_len in subject.stages():
        size = subject.context(stage)
        if size > 1 and seq_len % (2 * size):
            got = f"{seq_len} tokens in 2 x context = {2 * size} chunks leave {seq_len % (2 * size)} over"
            key = f"stage.{index}.context" if stage.context else key
            near = max(1, seq_len // (2 * size)) * 2 * size
            yield Finding(key, got, "a whole number each", f"Use sequences of {near} tokens or change context")


@rule("layout.context-short", "note")
def short_context(subject: Subject) -> Iterator[Finding]:
    """Context parallelism is for long sequences: with few tokens a rank, exchanging keys and values costs more than is saved.

    Example: context = 2 with sequences of 4,096 tokens, as in a public 70B recipe; NVIDIA's own rows with context = 2 are at 8,192.
    Source: Megatron-LM and dgxc-benchmarking recipes v25.02 (context 2 at 8,192 tokens); arXiv 2407.21783, table 4 (16 at 131,072).
    """
    for index, stage, key, seq_len in subject.stages():
        size = subject.context(stage)
        if size > 1 and seq_len // size < 4096:
            key = f"stage.{index}.context" if stage.context else "parallel.context" if subject.given("parallel.context") else key
            got = f"{seq_len} tokens over context {size} are {seq_len // size} a rank"
            yield Finding(key, got, "published runs keep 4,096 or more", "Prefer context = 1 with recomputation or more tensor ranks")
            return


@rule("layout.context-exchange")
def exchange(subject: Subject) -> Iterator[Finding]:
    """How context-parallel ranks exchange tokens is said where there are such ranks; by "ulysses" each of them gets whole heads.

    Example: context_exchange = "ring" with context = 1; "ulysses" with 8 heads over tensor 2 x context 8.
    Source: arXiv 2309.14509, section 3.1 (Ulysses: tokens for heads); arXiv 2310.01889 (ring attention).
    """
    parallel, heads = subject.parallel, subject.model.heads
    sizes = sorted({subject.context(stage) for _, stage, *_ in subject.stages()} - {1})
    if not sizes and subject.given("parallel.context_exchange"):
        got = f'context_exchange "{parallel.context_exchange}" has no effect with context = 1'
        yield Finding("parallel.context_exchange", got, "", "Remove it")
    for size in sizes if parallel.context_exchange == "ulysses" else ():
        if heads % (parallel.tensor * size):
            got = f"{heads} heads over tensor {parallel.tensor} x context {size} = {parallel.tensor * size}"
            yield Finding("parallel.context_exchange", got, "whole heads on each rank", 'Set it to "ring" or "gather"')


@rule("layout.sequence")
def sequence(subject: Subject) -> Iterator[Finding]:
    """Sequence parallelism splits along the sequence what tensor parallelism leaves whole, so it needs the one and divides the other.

    Megatron-LM switches it off without tensor parallelism and goes on.
    Example: sequence = true with tensor = 1; sequences of 1,002 tokens with tensor = 4.
    Source: arXiv 2205.05198; Megatron-LM 0.19.2, validate_args (verdict "sp_tp1").
    """
    parallel = subject.parallel
    if not parallel.sequence:
        return
    if parallel.tensor == 1:
        yield Finding("parallel.sequence", "sequence = true has no effect with tensor = 1", "", "Remove it or raise tensor")
        return
    for index, stage, key, seq_len in subject.stages():
        part = seq_len // subject.context(stage)
        if part % parallel.tensor:
            got = f"{part} tokens a rank over tensor {parallel.tensor}"
            key = f"stage.{index}.context" if stage.context else key
            yield Finding(key, got, "sequence parallelism splits them evenly", "Change the sequence length or the tensor size")


@rule("layout.experts-sequence", "warning")
def experts_sequence(subject: Subject) -> Iterator[Finding]:
    """Experts under tensor parallelism want sequence parallelism too, else every tensor rank routes the same tokens.

    Example: tensor = 2 and [model.experts] without sequence = true.
    Source: Megatron-LM's MoE guide (sequence parallelism is needed for experts with tensor parallelism).
    """
    parallel = subject.parallel
    if subject.model.experts and parallel.tensor > 1 and not parallel.sequence:
        got = f"experts with tensor {parallel.tensor} and no sequence parallelism"
        yield Finding("parallel.tensor", got, "each tensor rank routes all tokens", "Set parallel.sequence = true")


@rule("layout.sharding", "warning")
def sharding(subject: Subject) -> Iterator[Finding]:
    """What is sharded has replicas to be sharded over, and a pipeline does not re-gather whole weights for every micro-batch.

    Example: sharding = "optimizer" on as many GPUs as the layout takes once; sharding = "full" with pipeline = 8.
    Source: arXiv 1910.02054; arXiv 2407.21783, section 3.3.2 (weights are not re-sharded between micro-batches of the pipeline).
    """
    parallel = subject.parallel
    if parallel.sharding == "full" and parallel.pipeline > 1:
        got = f'sharding = "full" with {parallel.pipeline} pipeline stages'
        yield Finding("parallel.sharding", got, "every micro-batch gathers the weights again", 'Use sharding = "optimizer"')
    replicas = subject.replicas()
    if parallel.sharding != "none" and replicas is not None and replicas * parallel.context == 1:
        got = f'sharding = "{parallel.sharding}" on {subject.ranks} ranks has no effect'
        yield Finding("parallel.sharding", got, "there is one replica", "Use more GPUs or remove it")


@rule("layout.replicate")
def replicate(subject: Subject) -> Iterator[Finding]:
    """Groups that hold everything are groups of replicas, and something is sharded within them.

    Example: replicate = 4 with sharding = "none"; replicate = 3 on 8 data-parallel replicas.
    Source: arXiv 2304.11277, section 3.2.2 (hybrid sharding).
    """
    parallel, replicas = subject.parallel, subject.replicas()
    if parallel.replicate == 1:
        return
    if parallel.sharding == "none":
        got = f'replicate {parallel.replicate} has no effect with sharding = "none"'
        yield Finding("parallel.replicate", got, "every replica holds everything already", "Remove it or shard")
    elif replicas is not None and replicas % parallel.replicate:
        got = f"{replicas} data-parallel replicas in {parallel.replicate} groups"
        yield Finding("parallel.replicate", got, "a whole number each", f"Use one of {_list(divisors(replicas))}")


@rule("layout.recompute")
def recompute(subject: Subject) -> Iterator[Finding]:
    """Recomputation names layers only where whole layers are recomputed, and no more than a stage has.

    Example: recompute = { kind = "selective", layers = 4 }; layers = 40 on stages of 10.
    Source: Megatron-LM 0.19.2, TransformerConfig (--recompute-num-layers goes with full recomputation).
    """
    chosen, parallel = subject.parallel.recompute, subject.parallel
    if chosen.layers is None:
        return
    if chosen.kind != "full":
        yield Finding("parallel.recompute.layers", f'layers {chosen.layers} has no effect with kind = "{chosen.kind}"', "", "Remove it")
        return
    most = -(-subject.model.layers // parallel.pipeline)
    if parallel.pipeline_layers:
        most = max(sum(parallel.pipeline_layers[stage :: parallel.pipeline]) for stage in range(parallel.pipeline))
    if chosen.layers > most:
        got = f"{chosen.layers} layers are recomputed"
        yield Finding("parallel.recompute.layers", got, f"a pipeline rank has {most}", "Remove it to recompute all")


@rule("layout.padded-vocabulary", "note")
def vocabulary(subject: Subject) -> Iterator[Finding]:
    """Embedding and head are padded so that every tensor-parallel rank holds a multiple of 128 rows.

    The padding costs memory and FLOPs, is never predicted, and does not leave the program: an export has the model's own rows.
    Example: vocab_size = 65_535 with tensor = 2 is padded to 65,536.
    Source: Megatron-LM's --make-vocab-size-divisible-by; case A09 (hpcaitech/ColossalAI issue 6167).
    """
    size, parallel = subject.model.vocab_size, subject.parallel
    padded = padded_vocab(size, parallel.tensor)
    if parallel.tensor > 1 and padded != size:
        got = f"a vocabulary of {size:_} over tensor {parallel.tensor}"
        yield Finding("model.vocab_size", got, f"padded to {padded:_}, {padded // parallel.tensor:_} rows a rank")


def _idle_ranks(subject: Subject) -> list[int]:
    """Pipeline ranks that hold nothing; none when the pieces do not add up."""
    try:
        split = pipeline_split(subject.model.layers, subject.parallel)
    except ValueError:
        return []
    return [rank for rank, pieces in enumerate(split) if not any(piece.layers or piece.first or piece.last for piece in pieces)]


def _cut(subject: Subject, size: int) -> Iterator[tuple[str, str, str]]:
    """Key, quantity and reason for everything that a tensor size does not cut evenly."""
    model, groups = subject.model, kv_heads(subject.model)
    if model.heads % size:
        yield "model.heads", f"{model.heads} heads", "tensor parallelism gives each rank whole attention heads"
    if model.mla is None and model.kv_heads is not None and groups % size and size % groups:
        yield "model.kv_heads", f"{groups} kv_heads", "neither divides the other: each rank needs whole key/value heads"
    if model.ffn_hidden % size:
        yield "model.ffn_hidden", f"ffn_hidden {model.ffn_hidden}", "tensor parallelism splits the inner width evenly"


def _near(count: int, multiple: int) -> str:
    below = count - count % multiple
    return f"{below:_} or {below + multiple:_}" if below else f"{multiple:_}"


def _list(numbers: list[int]) -> str:
    shown = [str(n) for n in numbers]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], "...", shown[-1]])

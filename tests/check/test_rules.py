"""Every rule is shown a recipe that breaks it; what it says is compared with hand calculations and published figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from preheat.check import RULES, Machine
from preheat.errors import Problem
from preheat.recipe import catalog

Check = Callable[..., list[Problem]]

EXPERTS = "model.experts={ count = 8, active = 2, ffn_hidden = 14336, aux_loss = 0.01 }"
LATENT = "model.mla={ kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }"
YARN = "model.rope_scaling={ kind = 'yarn', factor = 8.0, original_max_positions = 256, beta_fast = 32.0, beta_slow = 1.0 }"

LLAMA3 = "model.rope_scaling={ kind = 'llama3', factor = 8.0, original_max_positions = 256, low_freq_factor = 4.0, high_freq_factor = 1.0 }"
V_SHAPE = "parallel={ pipeline = 4, virtual_pipeline = 2, schedule = 'zero-bubble-v' }"
RAMP = "[{ at = '0 tokens', size = %s }, { at = '%s tokens', size = %s }, { at = '%s tokens', size = 1024 }]"
SEGMENTS = (
    "schedule={ length = '200B tokens', peak_lr = 3e-4, final_lr = 3e-5, warmup = '1%%', decay = 'segments', segment = ["
    "{ until = '%s', lr = 2e-4, shape = 'linear' }, { until = '%s', lr = 1e-4, shape = 'linear' }, { lr = 3e-5, shape = 'linear' }] }"
)

# rule -> settings on tests' `dense` recipe, and GPUs or a machine where the rule needs them
BROKEN: dict[str, tuple[list[str], str | None, Machine | None]] = {
    "batch.micro-size": (["batch.micro_size=3"], None, None),
    "batch.pipeline-fill": (["batch.global_size=4", "parallel.pipeline=8"], None, None),
    "batch.pipeline-schedule": (
        ["batch.global_size=3", "parallel.pipeline=4", "parallel.virtual_pipeline=2", "parallel.schedule=interleaved"],
        "4",
        None,
    ),
    "batch.ramp": (["batch.ramp=[{ at = '0 tokens', size = 8 }]"], None, None),
    "batch.ramp-rises": (["batch.ramp=[{ at = '0 tokens', size = 1024 }, { at = '1B tokens', size = 1024 }]"], None, None),
    "batch.replicas": (["batch.micro_size=16"], "48", None),
    "batch.tokens": (["batch.global_size=65536", "schedule.warmup=1%", "checkpoint.every=1%"], None, None),
    "data.contamination": (["evaluation.tasks=['tasks/*.jsonl']", "data.decontaminate.enabled=false"], None, None),
    "data.held-out": (["data.held_out=50%"], None, None),
    "data.idle": (["data.source.web.format=text", "data.source.web.text_field=body"], None, None),
    "data.kept-out": (["evaluation.tasks=['tasks/*.jsonl']"], None, None),
    "data.licence": (["data.source.web.licence=''"], None, None),
    "data.unmixed": (["stage.main.mix={ web = 1 }", "stage.anneal.mix={ web = 1 }"], None, None),
    "engine.compile": (["parallel={ pipeline = 2, virtual_pipeline = 2, schedule = 'zero-bubble-v', compile = true }"], None, None),
    "engine.experts": ([EXPERTS, "parallel.tensor=2"], None, None),
    "engine.heads": (["parallel.tensor=16"], None, None),
    "engine.not-trained": (["model.dropout=0.1"], None, None),
    "engine.optimizer": (["optimizer.state_precision=bf16"], "8", None),
    "engine.prediction": (["model.mtp={ layers = 4, loss_weight = 0.3 }", "batch.seq_len=4"], None, None),
    "engine.ring": (["parallel={ context = 2, context_exchange = 'ring' }", "batch.mask_documents=true"], None, None),
    "engine.sharding": (
        ["parallel={ pipeline = 4, virtual_pipeline = 2, schedule = 'zero-bubble', sharding = 'full' }"],
        None,
        None,
    ),
    "engine.vocabulary": (["parallel.tensor=32", "model.vocab_size=258"], None, None),
    "experts.active": ([EXPERTS, "model.experts.active=9"], None, None),
    "experts.balance": ([EXPERTS, "model.experts.aux_loss=0.0"], None, None),
    "experts.bias-score": ([EXPERTS, "model.experts.bias_update_rate=0.001"], None, None),
    "experts.capacity": ([EXPERTS, "model.experts.capacity_factor=0.8"], None, None),
    "experts.groups": ([EXPERTS, "model.experts.groups=3", "model.experts.active_groups=1"], None, None),
    "experts.parallel": (["parallel.expert=8"], None, None),
    "experts.small-slices": ([EXPERTS, "parallel.expert_tensor=4"], None, None),
    "launch.port": ([], None, Machine({"MASTER_PORT": "40000"})),
    "launch.servers": ([], "20", None),
    "launch.tensor-domain": (["parallel.tensor=16"], "16", None),
    "launch.torch": ([], None, Machine({}, "2.9.0")),
    "launch.two-launchers": ([], None, Machine({"SLURM_NTASKS_PER_NODE": "8", "TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "8"})),
    "layout.context": (["batch.seq_len=8190", "parallel.context=4"], None, None),
    "layout.context-exchange": (["parallel.context_exchange=ring"], None, None),
    "layout.replicate": (["parallel.replicate=2"], None, None),
    "layout.context-short": (["parallel.context=2"], None, None),
    "layout.experts-sequence": ([EXPERTS, "parallel.tensor=2"], None, None),
    "layout.kv-copies": (["parallel.tensor=16"], None, None),
    "layout.padded-vocabulary": (["model.vocab_size=50257", "parallel.tensor=2"], None, None),
    "layout.pipeline": (["parallel.pipeline=5"], None, None),
    "layout.pipeline-order": (["parallel.schedule=dualpipe"], None, None),
    "layout.ranks": (["parallel.tensor=2"], "7", None),
    "layout.recompute": (["parallel.recompute={ kind = 'selective', layers = 4 }"], None, None),
    "layout.sequence": (["parallel.sequence=true"], None, None),
    "layout.sharding": (["parallel.sharding=optimizer"], "1", None),
    "layout.tensor": (["parallel.tensor=3"], None, None),
    "memory.fits": ([], "8xA100-40", None),
    "memory.tight": (["parallel.sharding=optimizer", "batch.global_size=8", "batch.seq_len=4096"], "8x78GB", None),
    "model.dropout": (["model.dropout=0.1"], None, None),
    "model.head-dim": (["model.heads=3"], None, None),
    "model.kv-heads": (["model.kv_heads=5"], None, None),
    "model.latent-attention": ([LATENT], None, None),
    "model.position": (["model.position=learned", "model.max_positions=2048"], None, None),
    "model.prediction-weights": (["model.mtp={ layers = 1, loss_weight = [{ at = '10B tokens', weight = 0.1 }] }"], None, None),
    "model.range": (["model.init_std=2.0"], None, None),
    "model.rope-base": (["model.rope_theta=10000.0", "batch.seq_len=8192"], None, None),
    "model.rope-scaling": ([YARN], None, None),
    "model.size-in-name": (["name=dense-15b"], None, None),
    "model.sliding-window": (["model.sliding_window=4096"], None, None),
    "model.tokens": (["schedule.length=15T tokens"], None, None),
    "optimizer.betas": (["optimizer.betas=[0.95, 0.9]"], None, None),
    "optimizer.idle": (["optimizer.momentum=0.9"], None, None),
    "optimizer.range": (["optimizer.weight_decay=10.0"], None, None),
    "precision.fp16": (["precision.compute=fp16"], None, None),
    "precision.fp8-recipe": (["precision.compute=fp8"], None, None),
    "precision.fp8-shape": (
        ["precision.compute=fp8", "precision.fp8_recipe=delayed", "model.ffn_hidden=11000", "parallel.tensor=8"],
        None,
        None,
    ),
    "precision.gpu": (["precision.compute=fp8", "precision.fp8_recipe=delayed"], "64xA100", None),
    "run.bounds": (["model.layers=1000000000000"], None, None),
    "run.intervals": (["checkpoint.every=0 tokens"], None, None),
    "run.never-due": (["checkpoint.every=300B tokens"], None, None),
    "run.timeline": (["stage.main.until=100%"], None, None),
    "run.unreached": (["batch.ramp=[{ at = '0 tokens', size = 512 }, { at = '300B tokens', size = 1024 }]"], None, None),
    "schedule.decay": (["schedule.decay_length=10%"], None, None),
    "schedule.fits": (["schedule.length=1000 steps"], None, None),
    "schedule.in-samples": (["schedule.warmup=3_906_252 samples"], None, None),
    "schedule.jump": (["schedule.warmup=100%"], None, None),
    "schedule.length": (["schedule.length=15T samples"], None, None),
    "schedule.lr-order": (["schedule.final_lr=1e-3"], None, None),
    "schedule.peak-lr": (["schedule.peak_lr=0.6"], None, None),
    "schedule.segments": (
        ["schedule.decay=segments", "schedule.segment=[{ lr = 1e-5, shape = 'cosine' }]"],
        None,
        None,
    ),
    "stage.mix": (["stage.main.mix={ web = 0.7, cod = 0.3 }"], None, None),
    "stage.order": (["stage.anneal.name=main"], None, None),
    "stage.seq-len": (["stage.anneal={ name = 'anneal', seq_len = 10000, mix = { code = 1 } }"], None, None),
    "stage.share": (["stage.anneal.mix={ web = 1, code = 1e-9 }"], None, None),
    "tokenizer.path": (["tokenizer={ kind = 'train-bpe', path = 'tokenizer.json' }"], None, None),
    "tokenizer.vocabulary": (["tokenizer={ kind = 'gpt2' }", "model.vocab_size=32000"], None, None),
}


def test_every_rule_has_a_case() -> None:
    assert set(BROKEN) == set(RULES)


def test_the_recipe_of_these_tests_is_sound(problems: Check) -> None:
    assert problems("dense") == []


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_recipe_is_found_by_its_rule(problems: Check, rule: str) -> None:
    sets, gpus, machine = BROKEN[rule]
    found = [problem for problem in problems("dense", *sets, gpus=gpus, machine=machine) if problem.rule == rule]
    assert found
    assert all(problem.severity == RULES[rule].severity and problem.got for problem in found)
    assert all(problem.where.key and problem.source for problem in found)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_field_of_a_table_has_an_effect(problems: Check, form: str) -> None:
    assert problems("dense", f"data.source.web.format={form}", "data.source.web.text_field=body") == []


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_is_about_gives_an_example_and_its_source(name: str) -> None:
    lines = RULES[name].explanation.splitlines()
    assert lines[0].endswith((".", ":"))
    assert sum(line.startswith("Example: ") for line in lines) == 1
    assert sum(line.startswith("Source: ") for line in lines) == 1
    assert 10 < len(RULES[name].source) < 400


@pytest.mark.parametrize("name", RULES)
def test_a_rule_belongs_to_a_family(name: str) -> None:
    families = {
        "batch",
        "data",
        "engine",
        "experts",
        "launch",
        "layout",
        "memory",
        "model",
        "optimizer",
        "precision",
        "run",
        "schedule",
        "stage",
    }
    assert name.partition(".")[0] in families | {"tokenizer"}


@pytest.mark.parametrize(
    ("rule", "sets", "gpus", "words"),
    [
        ("model.head-dim", ["model.heads=3"], None, ["hidden 4096 / heads 3", "2 heads"]),
        ("model.head-dim", ["model.rotary_fraction=0.3"], None, ["38.4 of 128 dims"]),
        ("model.head-dim", ["model.rotary_fraction=1e-9"], None, ["0 of 128 dims"]),
        ("model.head-dim", ["model.head_dim=1"], None, ["1 of 1 dims"]),
        ("model.latent-attention", [LATENT, "model.rotary_fraction=0.5"], None, ["rotary_fraction 0.5", "qk_rope_head_dim"]),
        ("model.position", [LATENT, "model.position=learned", "model.max_positions=4096"], None, ['"learned" beside [model.mla]']),
        ("model.position", ["model.rope_theta=1.0"], None, ["rope_theta 1", "above 1"]),
        ("model.position", ["stage.anneal.rope_theta=0.5"], None, ["stage.1.rope_theta", "rope_theta 0.5"]),
        ("model.rope-scaling", [YARN.replace("32.0", "1.0")], None, ["beta_fast 1", "beta_slow is 1"]),
        ("model.rope-scaling", [LLAMA3], None, ["high_freq_factor 1", "low_freq_factor is 4"]),
        ("model.range", ["model.norm_eps=1.0"], None, ["norm_eps 1", "1e-12 to 0.01"]),
        ("optimizer.range", ["optimizer.betas=[0.09, 0.95]"], None, ["a beta of 0.09"]),
        ("optimizer.range", ["optimizer.eps=1.0", "optimizer.clip_grad_norm=1e-9"], None, ["eps 1", "clip_grad_norm 1e-09"]),
        ("batch.ramp-rises", [f"batch.ramp={RAMP % (64, '1B', 32, '2B')}"], None, ["32 samples after 64"]),
        ("run.unreached", [f"batch.ramp={RAMP % (64, '1B', 128, '1_000_000_001')}"], None, ["batch.ramp.1.at", "no step has this size"]),
        (
            "run.unreached",
            [f"batch.ramp={RAMP % (64, '1B', 128, '190B')}", "stage.anneal.global_size=512"],
            None,
            ["batch.ramp.2.at", "a change at 190B tokens", "no step has this size"],
        ),
        ("data.unmixed", ["stage.main.mix={ web = 1 }", "stage.anneal.mix={ web = 1 }"], None, ["no stage mixes code"]),
        ("data.idle", ["data.held_out=100%"], None, ["everything is held out"]),
        ("data.idle", ["data.source.web.format=tokens", "data.source.web.language=en"], None, ["language has no effect on token ids"]),
        (
            "data.idle",
            ["data.source.web.format=tokens", "data.source.code.format=tokens", "data.dedup.against=['prepared/old']"],
            None,
            ["against has no effect on token ids"],
        ),
        ("data.idle", ["data.dedup.paragraph_words=30"], None, ["paragraph_words has no effect without paragraphs = true"]),
        ("data.idle", ["data.decontaminate.ngram=8"], None, ["ngram has no effect: neither evaluation.tasks"]),
        ("data.idle", ["data.decontaminate.enabled=false"], None, ["enabled has no effect: neither evaluation.tasks"]),
        (
            "data.idle",
            ["evaluation.tasks=['t.jsonl']", "data.decontaminate={ enabled = false, ngram = 8, also = ['u.jsonl'] }"],
            None,
            ["ngram has no effect with enabled = false", "also has no effect with enabled = false"],
        ),
        (
            "data.idle",
            ["evaluation.tasks=['t.jsonl']", "data.decontaminate.also=['t.jsonl']"],
            None,
            ["also names what evaluation.tasks names"],
        ),
        (
            "data.contamination",
            ["evaluation.tasks=['t.jsonl']", "data.source.web.format=tokens", "data.source.code.format=tokens"],
            None,
            ["the tasks are not kept out of token ids"],
        ),
        (
            "data.kept-out",
            ["evaluation.tasks=['t.jsonl']", "data.decontaminate={ ngram = 8, also = ['u.jsonl'] }"],
            None,
            ["share 8 words in a row with t.jsonl, u.jsonl are left out"],
        ),
        ("tokenizer.path", ["tokenizer.path=https://host/tokenizer.json"], None, ["of this machine"]),
        ("layout.pipeline", ["parallel.pipeline=4", "parallel.pipeline_layers=[16, 0, 0, 16]"], None, ["rank 1 has no", "rank 2 has no"]),
        ("schedule.jump", ["schedule.warmup=100%"], None, ["from 0.0003 to 3e-05", "200_001_191_936 tokens", "a step of 4_194_304"]),
        ("run.bounds", ["model.rope_theta=1e300"], None, ["model.rope_theta", "1e+300"]),
        ("run.bounds", ["optimizer.eps=1e-300"], None, ["optimizer.eps", "at least 1e-30"]),
        ("run.timeline", ["schedule.length=100M tokens"], None, ["schedule.warmup is 2_000 steps", "24 steps"]),
        ("run.timeline", ["stage.main.until=300B tokens"], None, ["stage anneal ends at 100%", "before it at 300B tokens"]),
        ("run.timeline", [SEGMENTS % ("50%", "40%")], None, ["schedule.segment.1.until", "segment 2", "segment 1 before it"]),
        ("model.kv-heads", ["model.kv_heads=5"], None, ["32 heads over 5", "[1, 2, 4, 8, 16, 32]"]),
        ("model.latent-attention", [LATENT], None, ["kv_heads 8"]),
        ("model.position", ["model.position=learned"], None, ["rope_theta has no effect", "without max_positions"]),
        ("model.position", ["model.position=learned", "model.max_positions=2048"], None, ["sequences of 4096", "2048 rows"]),
        ("model.rope-scaling", [YARN], None, ["sequences of 4096 tokens", "8 x 256 positions reach 2048"]),
        ("model.size-in-name", ["name=gpt3-15b"], None, ["15B", "8.0B"]),
        ("model.tokens", ["schedule.length=15T tokens"], None, ["1_868 tokens", "160.6B"]),
        ("batch.tokens", ["batch.global_size=65536", "schedule.warmup=1%"], None, ["65536 samples x 4096 = 268.4M"]),
        ("batch.ramp", ["batch.ramp=[{ at = '1B tokens', size = 8 }]"], None, ["starts at 1B tokens", "ends at 8", "global_size is 1024"]),
        (
            "run.unreached",
            ["batch.ramp=[{ at = '0 tokens', size = 512 }, { at = '300B tokens', size = 1024 }]"],
            None,
            ["a change at 300B tokens", "ends at 200_001_191_936 tokens"],
        ),
        ("batch.micro-size", ["batch.micro_size=3"], None, ["1024 samples in micro-batches of 3", "micro_size of 2"]),
        ("batch.pipeline-schedule", BROKEN["batch.pipeline-schedule"][0], "4", ["3 micro-batches", "multiple of the 4 stages"]),
        ("experts.active", [EXPERTS, "model.experts.active=9"], None, ["9 active", "there are 8"]),
        ("experts.active", [EXPERTS, "model.experts.first_dense=32"], None, ["first 32 layers", "the model has 32"]),
        ("experts.groups", [EXPERTS, "model.experts.groups=4", "model.experts.active_groups=8"], None, ["8 active groups", "there are 4"]),
        (
            "experts.groups",
            [EXPERTS, "model.experts.groups=8", "model.experts.active_groups=1"],
            None,
            ["2 active experts from 1 groups", "they hold 1"],
        ),
        ("experts.parallel", [EXPERTS, "model.bias=true", "parallel.expert_tensor=2"], None, ["biases", "expert_tensor 2"]),
        ("layout.pipeline-order", ["parallel.virtual_pipeline=2", "parallel.pipeline=4"], None, ["virtual_pipeline 2", "1f1b"]),
        (
            "layout.pipeline-order",
            [V_SHAPE, "parallel.virtual_pipeline=1"],
            None,
            ['"zero-bubble-v" with virtual_pipeline 1', "two pieces"],
        ),
        (
            "layout.context-exchange",
            ["parallel.context_exchange=ulysses", "parallel.context=8", "parallel.tensor=8"],
            None,
            ["32 heads over tensor 8 x context 8 = 64"],
        ),
        (
            "layout.replicate",
            ["parallel.replicate=3", "parallel.sharding=full"],
            "8",
            ["8 data-parallel replicas in 3 groups", "1, 2, 4, 8"],
        ),
        (
            "batch.pipeline-schedule",
            ["parallel.schedule=dualpipe-v", "parallel.pipeline=4", "parallel.virtual_pipeline=2", "batch.global_size=6"],
            "4",
            ["6 micro-batches", "at least 2 x 4"],
        ),
        (
            "layout.sequence",
            ["parallel.sequence=true", "parallel.tensor=8", "batch.seq_len=4100"],
            None,
            ["4100 tokens a rank over tensor 8"],
        ),
        ("layout.recompute", ["parallel.recompute={ kind = 'full', layers = 40 }", "parallel.pipeline=4"], None, ["40 layers", "has 8"]),
        ("layout.sharding", ["parallel.sharding=full", "parallel.pipeline=8"], None, ["8 pipeline stages"]),
        ("precision.fp8-shape", BROKEN["precision.fp8-shape"][0], None, ["11000 over 8 ranks = 1375", "multiples of 16"]),
        (
            "precision.gpu",
            ["precision.compute=fp8", "precision.fp8_recipe=mxfp8"],
            "64xH100",
            ["mxfp8 on H100", "it multiplies fp8, bf16, fp16"],
        ),
        ("schedule.in-samples", ["schedule.warmup=3_906_252 samples"], None, ["3_906_252 samples are 16.0B tokens"]),
        (
            "schedule.length",
            ["schedule.length=15T samples"],
            None,
            ["61440.0T tokens", '"15T tokens"', '"3_662_109_375 samples" of 4_096'],
        ),
        ("schedule.lr-order", ["schedule.final_lr=1e-3"], None, ["final_lr 0.001", "peak_lr is 0.0003"]),
        ("schedule.decay", ["schedule.decay=wsd"], None, ["without decay_length", "without decay_shape"]),
        ("schedule.decay", ["schedule.decay=constant"], None, ["final_lr 3e-05 is never reached"]),
        ("stage.order", ["stage.anneal.until=95%"], None, ["95%", "200B tokens"]),
        ("stage.seq-len", BROKEN["stage.seq-len"][0], None, ["4096 does not divide the longest, 10000", "16"]),
        ("run.timeline", ["stage.main.until=100%"], None, ["stage anneal ends at 100%, and what comes before it at 100%"]),
    ],
)
def test_the_numbers_that_disagree_are_named(
    texts: Callable[..., str], rule: str, sets: list[str], gpus: str | None, words: list[str]
) -> None:
    text = texts(rule, "dense", *sets, gpus=gpus)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("rule", "sets"),
    [
        ("stage.order", ["stage.anneal.until=47684 steps"]),  # 47,684 steps of 1,024 x 4,096 tokens are the run
        ("schedule.segments", [SEGMENTS % ("40%", "50%"), "schedule.segment.2.until=48_828_416 samples"]),
        ("layout.pipeline", ["parallel.pipeline=4", "parallel.pipeline_layers=[0, 16, 16, 0]"]),  # embedding and head alone
        ("layout.pipeline", ["parallel.pipeline=4", "parallel.schedule=dualpipe", "parallel.pipeline_layers=[0, 16, 0, 16]"]),
        ("batch.ramp-rises", [f"batch.ramp={RAMP % (64, '1B', 128, '2B')}"]),
        ("run.unreached", [f"batch.ramp={RAMP % (64, '1B', 128, '2B')}"]),
        ("schedule.jump", ["schedule.warmup=100%", "schedule.final_lr=3e-4"]),
        ("optimizer.idle", ["optimizer.momentum=0.9", "optimizer.name=muon"]),
        ("layout.pipeline-order", [V_SHAPE]),
        ("batch.pipeline-schedule", [V_SHAPE, "batch.global_size=9", "parallel.gpus=4"]),
        ("layout.context-exchange", ["parallel.context_exchange=ulysses", "parallel.context=8", "parallel.tensor=4"]),
        ("layout.replicate", ["parallel.replicate=2", "parallel.sharding=full", "parallel.gpus=8"]),
    ],
)
def test_what_is_right_in_an_unusual_way_is_not_complained_about(texts: Callable[..., str], rule: str, sets: list[str]) -> None:
    assert texts(rule, "dense", *sets) == ""


def test_one_head_count_is_complained_about_once(texts: Callable[..., str]) -> None:
    """Without kv_heads there are as many as query heads: 12 heads over 8 ranks are one fault, not two."""
    recipe = ("model.heads=12", "model.hidden=1536", "parallel.tensor=8")
    assert texts("layout.tensor", "gpt3-15b", *recipe, "model.kv_heads=12").count("over tensor 8") == 2
    assert texts("layout.tensor", "toy-124m", *recipe).count("over tensor 8") == 1


@pytest.mark.parametrize(
    ("theta", "seq_len", "warned"),
    [
        (10_000, 4096, False),  # LLaMA 2
        (10_000, 8192, True),  # Megatron-LM's default under Llama 3's sequences
        (500_000, 8192, False),  # Llama 3
        (1_000_000, 32_768, False),  # Mixtral
        (8_000_000, 131_072, False),  # ProLong's choice from 64K on
        (10_000, 131_072, True),
    ],
)
def test_published_rope_bases_pass_and_the_forgotten_one_does_not(
    texts: Callable[..., str], theta: int, seq_len: int, warned: bool
) -> None:
    sets = [f"model.rope_theta={theta}.0", f"batch.seq_len={seq_len}", "batch.global_size=128"]
    assert bool(texts("model.rope-base", "dense", *sets)) is warned


def test_the_toy_is_over_trained_four_times(texts: Callable[..., str]) -> None:
    """10B tokens on 124M parameters: 80 a parameter, and 20 would be 2.5B tokens."""
    text = texts("model.tokens", "toy-124m")
    assert "80.4 tokens" in text
    assert "2.5B" in text


def test_all_problems_come_at_once_errors_first(problems: Check) -> None:
    found = problems("dense", "model.heads=3", "batch.micro_size=3", "parallel.tensor=2", "schedule.length=15T samples")
    severities = [problem.severity for problem in found]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert {"model.head-dim", "batch.micro-size", "layout.tensor", "schedule.length", "model.tokens"} <= {p.rule for p in found}


NOTES = {"engine.not-trained", "layout.padded-vocabulary", "model.tokens", "schedule.in-samples", "precision.fp16"}
"""What says something worth knowing about a published recipe without being wrong."""
MORE_NOTES = {"gpt3-15b-gpt2-vocab": {"model.size-in-name"}}
"""15B is the name of the recipe it is taken from; with GPT-2's vocabulary the model has 12.8B parameters."""


@pytest.mark.parametrize("name", catalog())
def test_the_catalog_has_no_error_and_no_warning(problems: Check, name: str) -> None:
    found = problems(name)
    assert [str(problem) for problem in found if problem.severity != "note"] == []
    assert {problem.rule for problem in found} <= NOTES | MORE_NOTES.get(name, set())

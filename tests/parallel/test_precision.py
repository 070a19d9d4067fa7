"""Training with blocks in fp8 or compiled stays near training without."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from layout_run import (
    DENSE,
    MODELS,
    VOCABULARY,
    Bars,
    Outcome,
    Training,
    assert_equal,
    compiled_distance,
    distance,
    import_torchao,
    train,
)
from rank_pool import RankPool

from preheat.errors import PreheatError
from preheat.parallel import Engine, Objective
from preheat.recipe import LatentAttention, Model, Parallel, Precision, Recompute

WIDE = {
    "dense": DENSE,
    "deepseek": MODELS["deepseek"].model_copy(
        update={"mla": LatentAttention(q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)}
    ),
}
"""All dims are multiples of 16."""


def losses(model: Model, parallel: Parallel, compute: torch.dtype, precision: Precision, steps: int = 5) -> list[tuple[float, float]]:
    """Loss and gradient norm of AdamW steps on random tokens, in two micro-batches each."""
    engine = Engine(model, parallel, 1, torch.device("cpu"), compute, precision)
    optimizer = torch.optim.AdamW([parameter for _, parameter in engine.named_parameters()], lr=3e-3, eps=1e-4)
    found = []
    for step in range(steps):
        tokens_BT = torch.randint(0, VOCABULARY, (4, 33), generator=torch.Generator().manual_seed(step))
        summed = engine.accumulate(tokens_BT[:, :-1], tokens_BT[:, 1:], 2, Objective(4 * 32))
        found.append((float(summed.cross_entropy) / (4 * 32), engine.clip(0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("model", ["dense", "deepseek"])
def test_fp8_is_bf16_with_coarser_products(model: str, scaling: str) -> None:
    """An e4m3 number has three bits of mantissa and bf16 has seven: products are off by some per cent, and sums of many by less."""
    pytest.importorskip("torchao")
    fine, coarse = (
        losses(WIDE[model], Parallel(), torch.bfloat16, precision)
        for precision in (Precision(), Precision(compute="fp8", fp8_recipe=scaling))
    )
    assert coarse[0] == (pytest.approx(fine[0][0], rel=5e-3), pytest.approx(fine[0][1], rel=5e-2))
    assert [loss for loss, _ in coarse] == pytest.approx([loss for loss, _ in fine], rel=2e-2)  # by then tokens chose other experts
    assert coarse != fine


def test_fp8_leaves_head_and_router_and_the_names() -> None:
    torchao = pytest.importorskip("torchao.float8.float8_linear")
    model = WIDE["deepseek"]
    plain, engine = (
        Engine(model, Parallel(), 1, torch.device("cpu"), torch.bfloat16, precision)
        for precision in (Precision(), Precision(compute="fp8", fp8_recipe="tensorwise"))
    )
    assert [name for name, _ in engine.named_parameters()] == [name for name, _ in plain.named_parameters()]
    (piece,) = engine.pieces
    coarse = {name for name, module in piece.transformer.named_modules() if isinstance(module, torchao.Float8Linear)}
    assert coarse == {name for name, module in plain.pieces[0].transformer.named_modules() if isinstance(module, torch.nn.Linear)} - {
        "head",
        "predictions.0.project",
    }


def test_a_matrix_that_fp8_cannot_multiply_is_refused() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(PreheatError, match=r"feed_forward.gate of a block is a matrix of 40 x 32; fp8 needs multiples of 16"):
        losses(DENSE.model_copy(update={"ffn_hidden": 40}), Parallel(), torch.bfloat16, Precision(compute="fp8", fp8_recipe="tensorwise"))


@pytest.mark.parametrize(
    ("sizes", "scaling"),
    [({"sharding": "full"}, "tensorwise"), ({"tensor": 2, "sequence": True}, "rowwise"), ({"pipeline": 2}, "rowwise")],
    ids=["sharded", "sequence", "pipeline"],
)
def test_fp8_over_ranks_is_one_process(ranks: RankPool, sizes: dict[str, Any], scaling: str) -> None:
    """Ranks scale what they hold, so that roundings part, and losses by some 1e-3; a scale that is lost shows at once."""
    pytest.importorskip("torchao")
    precision = Precision(compute="fp8", fp8_recipe=scaling)
    training = Training(WIDE["dense"].model_copy(update={"layers": 2}), 2, ((8, 16),) * 3, compute=torch.bfloat16, precision=precision)
    [alone] = ranks.run(1, train, training, Parallel())
    assert_equal(ranks.run(2, distance, training, Parallel(**sizes), alone), Bars(loss=5e-3, norm=3e-2, parameter=3e-2, score=1e-2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # of torch's own
@pytest.mark.parametrize(("model", "recompute"), [("dense", "none"), ("dense", "full"), ("gpt2", "selective"), ("deepseek", "none")])
def test_compiled_blocks_compute_the_same(model: str, recompute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated as a whole, but without Inductor's compiler, which takes half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    shallow = MODELS[model].model_copy(update={"layers": 2})
    plain, compiled = (
        losses(shallow, Parallel(recompute=Recompute(kind=recompute), compile=choice), torch.float32, Precision(), steps=2)
        for choice in (False, True)
    )
    assert compiled == [pytest.approx(pair, rel=1e-5) for pair in plain]
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("dense", {"sharding": "full", "recompute": Recompute(kind="full")}),
        ("gpt2", {"pipeline": 2}),
        ("deepseek", {"context": 2, "expert": 2}),
    ],
)
def test_compiled_blocks_over_ranks_are_one_process(
    ranks: RankPool, reference: Callable[[Training], Outcome], name: str, sizes: dict[str, Any]
) -> None:
    training = Training(MODELS[name].model_copy(update={"layers": 2}), micro_size=2, shapes=((8, 16),) * 2)
    assert_equal(ranks.run(2, compiled_distance, training, Parallel(compile=True, **sizes), reference(training)))


@pytest.fixture(autouse=True, scope="module")
def _torchao() -> None:
    if importlib.util.find_spec("torchao") is not None:
        import_torchao()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing is compiled before, nor after."""
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

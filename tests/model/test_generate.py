from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Rope
from preheat.errors import PreheatError, RunFailed
from preheat.model import Cache, Transformer, build, generate, inference
from preheat.recipe import Model

ROTARY = Model(layers=2, hidden=32, heads=4, kv_heads=2, ffn_hidden=48, vocab_size=260, rope_theta=10_000.0, init_std=0.3)
LEARNED = ROTARY.model_copy(update={"position": "learned", "rope_theta": None, "max_positions": 24, "kv_heads": None})


@pytest.fixture(scope="module", params=[ROTARY, LEARNED], ids=["rotary", "learned"])
def transformer(request: pytest.FixtureRequest) -> Transformer:
    return build(request.param, seed=0)


@pytest.mark.parametrize("theta", [None, 300.0])
def test_logits_with_and_without_the_cache_agree(theta: float | None) -> None:
    transformer = build(ROTARY, seed=0)
    tokens = torch.randint(0, 260, (3, 20), generator=torch.Generator().manual_seed(1))
    with inference(transformer):
        whole = transformer.logits(transformer(tokens, rope=theta and Rope(theta)))
        cache = Cache(ROTARY, 20)
        parts = [transformer(tokens[:, :7], rope=theta and Rope(theta), cache=cache)]
        parts += [transformer(tokens[:, t : t + 1], rope=theta and Rope(theta), cache=cache) for t in range(7, 20)]
        assert cache.length == 20
        torch.testing.assert_close(transformer.logits(torch.cat(parts, dim=1)), whole, rtol=1e-4, atol=1e-5)


def test_greedy_text_is_what_taking_the_best_token_again_and_again_gives(transformer: Transformer) -> None:
    ids = [5, 6, 7]
    with inference(transformer):
        for _ in range(12):
            ids.append(int(transformer.logits(transformer(torch.tensor([ids])))[0, -1].argmax()))
    assert generate(transformer, [5, 6, 7], max_new_tokens=12, temperature=0) == ids[3:]
    assert generate(transformer, [5, 6, 7], max_new_tokens=12, temperature=1e-9) == ids[3:]
    assert generate(transformer, [5, 6, 7], max_new_tokens=12, top_p=1e-9) == ids[3:]


def test_text_depends_on_the_seed_alone(transformer: Transformer) -> None:
    texts = [generate(transformer, [1], max_new_tokens=20, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.6)])
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature: float, top_p: float) -> None:
    transformer = build(ROTARY.model_copy(update={"layers": 1}), seed=0)
    with inference(transformer):
        logits = transformer.logits(transformer(torch.tensor([[9]])))[0, -1].tolist()
    weights = {token: 2.718281828459045 ** (value / temperature) for token, value in enumerate(logits)}
    nucleus: dict[int, float] = {}
    for token in sorted(weights, key=lambda token: -weights[token]):
        if sum(nucleus.values()) < top_p * sum(weights.values()):
            nucleus[token] = weights[token]
    draws = 200
    drawn = Counter(
        generate(transformer, [9], max_new_tokens=1, temperature=temperature, top_p=top_p, seed=seed)[0] for seed in range(draws)
    )
    assert drawn.keys() <= nucleus.keys()
    for token, weight in nucleus.items():
        share = weight / sum(nucleus.values())
        assert abs(drawn[token] / draws - share) <= 5 * (share * (1 - share) / draws) ** 0.5 + 2 / draws


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(transformer: Transformer) -> None:
    text = generate(transformer, [1], max_new_tokens=20, seed=0)
    stop = text[10]
    assert generate(transformer, [1], max_new_tokens=20, seed=0, stop=[stop]) == text[: text.index(stop)]
    assert generate(transformer, [1], max_new_tokens=0) == []


@given(prompt=st.integers(1, 30), new=st.integers(0, 30))
@settings(max_examples=20, deadline=None)
def test_a_text_that_outgrows_the_position_table_is_refused_at_once(prompt: int, new: int) -> None:
    transformer = build(LEARNED, seed=0)
    if prompt + new <= 24:
        assert len(generate(transformer, [1] * prompt, max_new_tokens=new)) == new
    else:
        with pytest.raises(PreheatError, match="24 rows"):
            generate(transformer, [1] * prompt, max_new_tokens=new)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_ids": []}, "no token"),
        ({"prompt_ids": [260]}, "token id 260"),
        ({"prompt_ids": [-1]}, "token id -1"),
        ({"max_new_tokens": -1}, "-1 new tokens"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0.0}, "top_p 0"),
        ({"top_p": 1.5}, "top_p 1.5"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(PreheatError, match=message) as caught:
        generate(build(ROTARY, seed=0), **({"prompt_ids": [1], "max_new_tokens": 3} | arguments))  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_damaged_weights_are_said_to_be_damaged() -> None:
    transformer = build(ROTARY, seed=0)
    with torch.no_grad():
        transformer.norm.weight[0] = float("nan")
    with pytest.raises(RunFailed, match="not finite"):
        generate(transformer, [1], max_new_tokens=3)

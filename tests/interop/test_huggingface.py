"""Folders of Hugging Face: what is written, what is refused, and public faults of other converters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from preheat.arithmetic import Rope, padded_vocab
from preheat.errors import PreheatError
from preheat.interop.huggingface import FAMILIES, Setting, export_huggingface, import_huggingface, load_folder, open_folder
from preheat.interop.huggingface.plain import skeleton
from preheat.interop.tensor_rules import outward
from preheat.model import Transformer, build
from preheat.model.function import unlike
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction, RopeScaling, WidthTransfer, catalog, load
from preheat.train.initial import InitialWeights

LLAMA = Model(layers=2, hidden=32, heads=4, kv_heads=2, ffn_hidden=48, vocab_size=300, rope_theta=500_000.0, tied_embeddings=False)
SETTING = Setting(Rope(500_000.0), 64)
DEEPSEEK = Model(
    layers=2, hidden=32, heads=2, ffn_hidden=48, vocab_size=300, norm_eps=1e-6, rope_theta=10_000.0, tied_embeddings=False,
    mla=LatentAttention(q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=6),
    experts=Experts(count=4, active=2, ffn_hidden=16, shared=1, first_dense=1, score="sigmoid"),
    mtp=MultiTokenPrediction.model_validate({"layers": 1, "loss_weight": 0.1}),
)  # fmt: skip


def _start_from(model: Transformer, folder: Path) -> list[str]:
    initial = InitialWeights(model.config, folder)
    initial.fill(model.state_dict().items())
    return initial.notes


def _with(model: Model, **changes: Any) -> Model:
    return model.model_copy(update=changes)


def _setting(model: Model) -> Setting:
    return Setting(Rope(model.rope_theta, model.rope_scaling) if model.rope_theta else None, model.max_positions or 64)


def _export(model: Model, out: Path, change: Callable[[dict[str, Tensor]], None] = lambda _: None, **options: Any) -> Transformer:
    transformer = build(model, 1)
    weights = dict(transformer.state_dict())
    change(weights)
    export_huggingface(model, weights, _setting(model), out, **options)
    return transformer


def _logits(transformer: Transformer, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return transformer.eval().logits(transformer(torch.tensor([tokens])))


def _config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in {**values, **changes}.items() if value != "absent"}))


def _refused(rule: str, *words: str) -> Any:
    return pytest.raises(PreheatError, match=r"(?s)" + ".*".join([*words, rf"\[{rule}\]"]))


# What each family can express


def test_every_recipe_of_the_catalog_has_its_class_or_is_told_why_not() -> None:
    from preheat.interop.huggingface.registry import family_for

    found = {}
    for name in catalog():
        recipe = load(name).recipe
        try:
            found[name] = family_for(recipe.model, _setting(recipe.model)).architecture
        except PreheatError as error:
            found[name] = str(error.problems[0].where.key)
    assert found == {
        "deepseek-v3": "DeepseekV3ForCausalLM",
        "gpt3-15b": "NemotronForCausalLM",
        "gpt3-15b-gpt2-vocab": "model.norm",
        "gpt3-175b": "GPT2LMHeadModel",
        "gpt3-175b-megatron": "GPT2LMHeadModel",
        "llama3-70b": "LlamaForCausalLM",
        "llama3-8b": "LlamaForCausalLM",
        "llama3-8b-fp8": "LlamaForCausalLM",
        "llama3-8b-guide": "LlamaForCausalLM",
        "llama3.1-405b": "LlamaForCausalLM",
        "mixtral-8x22b": "MixtralForCausalLM",
        "mixtral-8x7b": "MixtralForCausalLM",
        "tiny": "LlamaForCausalLM",
        "toy-124m": "GPT2LMHeadModel",
    }


@pytest.mark.parametrize("name", ["llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gpt3-15b"])
def test_the_released_sizes_have_the_released_tensors(name: str) -> None:
    """Parameters as published (the models' own safetensors indices); planned on the meta device."""
    from preheat.interop.huggingface.registry import family_for

    model = load(name).recipe.model
    family = family_for(model, _setting(model))
    shapes = {theirs: tensor.shape for theirs, tensor in outward(family.rules(model), skeleton(model))}
    total = sum(shape.numel() for shape in shapes.values())
    published = {
        "llama3.1-405b": 405_853_388_800,
        "mixtral-8x7b": 46_702_792_704,
        # 684,489,845,504 with the copies of embedding and head that the release's prediction layer has; 58 + 1 layers of 256 score biases
        "deepseek-v3": 682_636_472_320 + 2 * 129_280 * 7168 + 59 * 256,
        "gpt3-175b": 174_604_259_328,
        "gpt3-15b": 15_628_775_424,
    }
    assert total == published[name]
    if name == "deepseek-v3":
        assert shapes["model.layers.60.mlp.experts.255.down_proj.weight"] == (7168, 2048)
        assert shapes["model.layers.61.eh_proj.weight"] == (7168, 14_336)
        assert shapes["model.layers.3.self_attn.kv_a_proj_with_mqa.weight"] == (576, 7168)


CHANGES: dict[str, Any] = {
    **{"activation": "gelu", "norm": "layernorm", "qk_norm": True, "rotary_fraction": 0.5, "sliding_window": 8},
    **{"position": "learned", "mla": DEEPSEEK.mla, "experts": DEEPSEEK.experts, "mtp": DEEPSEEK.mtp, "heads": 5, "bias": True},
    **{"layers": 3, "hidden": 64, "kv_heads": 4, "head_dim": 12, "ffn_hidden": 50, "vocab_size": 301, "norm_eps": 1e-6},
    **{"tied_embeddings": True, "dropout": 0.1, "init_std": 0.01, "mup": WidthTransfer(base_hidden=16)},
}
SILENT = {"depth_scaled_init", "init_truncation", "rope_theta", "rope_scaling", "max_positions", "mup"}
"""Fields that config.json has no place for: how weights began, what the last stage says instead, what is folded into the weights."""


def test_every_field_of_a_model_is_in_the_configuration_or_refused() -> None:
    family = FAMILIES[0]
    assert set(CHANGES) | SILENT == set(Model.model_fields)
    for field, value in CHANGES.items():
        changed = _with(LLAMA, **{field: value})
        obstacles = [obstacle.key for obstacle in family.obstacles(changed, SETTING)]
        written = family.config(changed, SETTING) != family.config(LLAMA, SETTING)
        assert field in SILENT or written or obstacles == [f"model.{field}"], field


def test_a_refusal_names_the_field_and_the_nearest_class() -> None:
    with _refused("export.architecture", "LlamaForCausalLM", "model.sliding_window = 8", "has none"):
        export_huggingface(_with(LLAMA, sliding_window=8), {}, SETTING, Path("never"))
    for field, model in {
        "model.norm_eps": _with(DEEPSEEK, norm_eps=1e-5),
        "model.experts.capacity_factor": _with(DEEPSEEK, experts=DEEPSEEK.experts.model_copy(update={"capacity_factor": 1.5})),
        "model.experts.groups": _with(DEEPSEEK, experts=DEEPSEEK.experts.model_copy(update={"groups": 4, "active_groups": 2})),
    }.items():
        with _refused("export.architecture", "DeepseekV3ForCausalLM", field):
            export_huggingface(model, {}, _setting(model), Path("never"))


def test_maximal_update_parametrization_with_further_predictions_is_refused(tmp_path: Path) -> None:
    with _refused("export.mup", "model.mtp"):
        _export(_with(DEEPSEEK, mup=WidthTransfer(base_hidden=16)), tmp_path / "out")


# Public faults of other converters


@pytest.mark.parametrize("tensor", [1, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_padding_rows_are_cut(tied: bool, tensor: int, tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull 5375: rows that only the layout needs were written out."""
    model = _with(LLAMA, vocab_size=50_257, tied_embeddings=tied, layers=1)
    rows = padded_vocab(50_257, tensor)
    assert rows == {1: 50_304, 8: 51_200}[tensor]

    def pad(weights: dict[str, Tensor]) -> None:
        for name in {"embedding.weight", "head.weight"} & set(weights):
            weights[name] = torch.cat((weights[name], torch.full((rows - 50_257, 32), 7.0)))

    transformer = _export(model, tmp_path / "out", pad)
    assert open_folder(tmp_path / "out").model.vocab_size == 50_257
    assert load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"].shape == (50_257, 32)
    back, _ = load_folder(tmp_path / "out")
    assert torch.equal(_logits(back, [1, 50_256, 3]), _logits(transformer, [1, 50_256, 3]))


@pytest.mark.parametrize("prefix", ["language_model.", ""])
def test_tying_is_a_property_and_no_name(prefix: str, tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull 4883: the tied head was lost behind another prefix."""
    transformer = _export(_with(LLAMA, tied_embeddings=True), tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    stored = load_file(file)
    assert "lm_head.weight" not in stored
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True
    renamed = {prefix + (name if prefix else name.removeprefix("model.")): tensor for name, tensor in stored.items()}
    save_file(renamed, file)
    back, _ = load_folder(tmp_path / "out")
    assert torch.equal(_logits(back, [5, 6, 7]), _logits(transformer, [5, 6, 7]))
    head = renamed[f"{prefix}model.embed_tokens.weight" if prefix else "embed_tokens.weight"]
    save_file(renamed | {f"{prefix}lm_head.weight": head.clone()}, file)
    if prefix:
        open_folder(tmp_path / "out")  # a copy is no other head
        save_file(renamed | {f"{prefix}lm_head.weight": head + 1}, file)
        with _refused("import.tied", "lm_head.weight is not equal"):
            open_folder(tmp_path / "out")
    _config(tmp_path / "out", tie_word_embeddings=False)
    save_file(renamed, file)
    with _refused("import.tensors", "1 tensors are missing \\(lm_head.weight\\)"):
        open_folder(tmp_path / "out")


def test_every_bit_and_the_number_format_survive(tmp_path: Path) -> None:
    """lightseekorg/TorchSpec pull 39: embeddings came out random and in another format."""
    transformer = _export(LLAMA, tmp_path / "out", lambda weights: weights.update({k: t.bfloat16() for k, t in weights.items()}))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["torch_dtype"], config["dtype"]) == ("bfloat16", "bfloat16")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(stored["model.embed_tokens.weight"], transformer.embedding.weight.bfloat16())
    table = json.loads((tmp_path / "out" / "export.json").read_text())["tensors"]
    import hashlib

    for name, tensor in stored.items():
        assert table[name]["sha256"] == hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()
        assert table[name]["dtype"] == "bfloat16"


def test_the_configuration_has_the_sizes_of_the_trained_model(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull 4676: it kept those of the reference model."""
    model = _with(load("llama3-8b").recipe.model, hidden=48, heads=6, kv_heads=3, head_dim=16, ffn_hidden=40, layers=2, vocab_size=333)
    _export(model, tmp_path / "out")
    assert unlike(open_folder(tmp_path / "out").model, model) == []
    assert load_file(tmp_path / "out" / "model.safetensors")["model.layers.1.self_attn.k_proj.weight"].shape == (48, 48)


def test_a_vocabulary_is_padded_once() -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull 5353: 151,936 rows became 303,872 with two ranks."""
    assert padded_vocab(151_936, 2) == 152_064
    assert padded_vocab(151_936, 1) == 151_936


def test_rotary_rows_of_latent_attention_change_places_and_back(tmp_path: Path) -> None:
    """huggingface/nanotron pull 214: pairs (2i, 2i + 1) were taken for pairs (i, i + half)."""
    transformer = _export(DEEPSEEK, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"]
    ours = transformer.state_dict()["blocks.0.attention.latent_down.weight"]
    assert torch.equal(stored[:8], ours[:8])
    assert torch.equal(stored[8::2], ours[8:12])
    assert torch.equal(stored[9::2], ours[12:])


# What is refused, and what is left then


@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "nan", "overflow"])
def test_a_wrong_tensor_is_refused_and_nothing_is_left(fault: str, tmp_path: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        name = "blocks.1.attention.key.weight"
        if fault == "missing":
            del weights[name]
        elif fault == "extra":
            weights["blocks.2.attention.key.weight"] = weights[name]
        elif fault == "shape":
            weights[name] = weights[name][:, 1:]
        else:
            weights[name] = weights[name].clone()
            weights[name][0, 0] = float("nan") if fault == "nan" else 1e5

    with pytest.raises(PreheatError, match=r"blocks\.\d\.attention\.key\.weight"):
        _export(LLAMA, tmp_path / "out", spoil, dtype="fp16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "falcon"}, "model_type 'falcon'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_hidden_layers": 3}, "tensors are missing"),
        ({"num_hidden_layers": 1}, "have no place"),
        ({"num_hidden_layers": "2"}, "a positive whole number"),
        ({"num_hidden_layers": True}, "a positive whole number"),
        ({"intermediate_size": 64}, "is 48 x 32 and not 64 x 32"),
        ({"rms_norm_eps": -1.0}, "a positive number"),
        ({"quantization_config": {"quant_method": "fp8"}}, "not quantized"),
        ({"rope_theta": 10_000.0}, "rope_parameters has 500000.0"),
        ({"rope_parameters": {"rope_type": "longrope"}, "rope_scaling": "absent"}, "default, llama3 or yarn"),
        ({"rope_parameters": "absent", "rope_scaling": {"type": "linear", "factor": 2.0}}, "default, llama3 or yarn"),
        ({"rope_parameters": "absent", "rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope_scaling"),
        ({"rope_parameters": [], "rope_theta": "absent", "rope_scaling": ["yarn"]}, "a table"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"vocab_size": 10}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "the files hold 21 tensors"),
        ({"hidden_size": 10**11, "head_dim": "absent"}, "a width of 100_000_000_000"),
        ({"head_dim": 10**9}, "a width of 4_000_000_000"),
        ({"num_attention_heads": 10**9}, "wants a divisor of hidden = 32"),
        ({"num_key_value_heads": 3}, "4 query heads over 3"),
        ({"head_dim": 7}, "7 is odd"),
        ({"attention_dropout": "none"}, "not negative"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}, "rope_theta": "absent"}, "no full_attention"),
        ({"rope_parameters": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5}}, "no partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": "big"}, "rope_theta": "absent"}, "a number above 1"),
    ],
)
def test_a_wrong_configuration_is_refused_by_key(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    _export(LLAMA, tmp_path / "out")
    _config(tmp_path / "out", **changes)
    with pytest.raises(PreheatError) as caught:
        open_folder(tmp_path / "out")
    assert words in str(caught.value)


NEMOTRON = Model(
    layers=1, hidden=80, heads=4, ffn_hidden=48, vocab_size=300, activation="squared_relu", norm="layernorm1p", rope_theta=10_000.0,
    rotary_fraction=0.5, tied_embeddings=False,
)  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": YARN, "rope_scaling": "absent"}, "scales the turned dims only"),
        ({"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.25}, "these are 5"),
        ({"partial_rotary_factor": 0.25}, "rope_parameters has 0.5"),
    ],
)
def test_what_the_class_computes_otherwise_is_refused_coming_in(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    _export(NEMOTRON, tmp_path / "out")
    _config(tmp_path / "out", **changes)
    with _refused("import.config", words):
        open_folder(tmp_path / "out")


def test_a_config_that_is_none_is_refused(tmp_path: Path) -> None:
    _export(LLAMA, tmp_path / "out")
    for text in ("[" * 100_000, "[]", "{", '"x"', " " * 1_000_001):
        (tmp_path / "out" / "config.json").write_text(text)
        with _refused("import.config"):
            open_folder(tmp_path / "out")


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    _export(LLAMA, tmp_path / "out")
    _config(tmp_path / "out", auto_map={"AutoModel": "evil.Model"}, logit_softcap=30.0, transformers_version="4.1")
    notes = open_folder(tmp_path / "out").notes
    assert [note.split(":")[0] for note in notes] == ["auto_map", "logit_softcap"]


@pytest.mark.parametrize("damage", ["absent", "cut", "index", "outside", "twice"])
def test_damaged_files_are_refused(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    _export(LLAMA, folder, shard_bytes=20_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    index = folder / "model.safetensors.index.json"
    assert len(shards) > 2
    if damage == "absent":
        shards[0].unlink()
    elif damage == "cut":
        shards[0].write_bytes(shards[0].read_bytes()[:200])
    elif damage == "index":
        index.write_text("[]")
    elif damage == "outside":
        index.write_text(index.read_text().replace(shards[0].name, "../elsewhere.safetensors"))
    else:
        save_file(load_file(shards[0]) | load_file(shards[1]), shards[1])
    with _refused("weights.file"):
        open_folder(folder)


def test_shards_hold_what_one_file_holds(tmp_path: Path) -> None:
    _export(LLAMA, tmp_path / "one")
    _export(LLAMA, tmp_path / "many", shard_bytes=20_000)
    one = load_file(tmp_path / "one" / "model.safetensors")
    many: dict[str, Tensor] = {}
    for shard in (tmp_path / "many").glob("*.safetensors"):
        content = load_file(shard)
        assert sum(tensor.nbytes for tensor in content.values()) <= 20_000 or len(content) == 1
        many |= content
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_a_pickle_needs_the_flag_and_runs_no_code(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    transformer = _export(LLAMA, folder)
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(stored, folder / "pytorch_model.bin")
    with _refused("import.pickle", "can run code", "--allow-pickle"):
        import_huggingface(folder, tmp_path / "back")
    import_huggingface(folder, tmp_path / "back", allow_pickle=True)
    started = build(LLAMA, 9)
    _start_from(started, tmp_path / "back")
    assert torch.equal(_logits(started, [1, 2, 3]), _logits(transformer, [1, 2, 3]))

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "evil",))

    torch.save({"model.norm.weight": Evil()}, folder / "pytorch_model.bin")
    with _refused("import.pickle", "restricted reader"):
        import_huggingface(folder, tmp_path / "again", allow_pickle=True)
    assert not (tmp_path / "evil").exists()


def test_the_card_says_what_was_trained_on_what() -> None:
    from preheat.interop.huggingface.card import Provenance, Sourced, model_card

    recipe = load("tiny").recipe
    evaluation = {"held_out": {"prose": {"bits_per_byte": 1.5625}}, "choices": {"next": {"accuracy": 0.5, "chance": 0.25}}}
    sources = [Sourced("prose", "public domain", 1_234_567), Sourced("mine", "", 5)]
    provenance = Provenance(recipe.model_dump(mode="json"), 2_500_096, 3_000, False, sources, evaluation)
    card = model_card(recipe.model, "LlamaForCausalLM", Rope(40_000.0), 512, provenance)
    for words in (
        "2,078,016 parameters",
        "2,500,096 tokens",
        "not complete",
        "| prose | 1,234,567 | public domain |",
        "| mine | 5 | not stated |",
    ):
        assert words in card
    for words in ("rotary base 40,000", "512 tokens", "1.5625", "chance 0.25", 'name = "tiny"', "[[stage]]"):
        assert words in card


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """A folder of each family here, with its configuration."""
    place = tmp_path_factory.mktemp("folders")
    for name, model in {"llama": LLAMA, "deepseek": DEEPSEEK, "nemotron": NEMOTRON}.items():
        _export(model, place / name)
    return {folder: (folder / "config.json").read_text() for folder in place.iterdir()}


WRONG = st.one_of(
    *(
        st.sampled_from(values)
        for values in ([None, True, False, 0, -1, 1, 2, 3, 7, 10**9, 10**30], [1.5, float("nan"), float("inf"), "", "x"])
    ),
    st.sampled_from([[], {}, [1], {"a": 1}, {"rope_type": "yarn"}, {"rope_type": "llama3", "factor": None}, {"rope_theta": None}]),
)


@settings(max_examples=200, deadline=5_000)
@given(st.data())
def test_no_configuration_ends_in_anything_but_a_model_or_a_refusal(folders: dict[Path, str], data: st.DataObject) -> None:
    folder, text = data.draw(st.sampled_from(sorted(folders.items())))
    values = json.loads(text)
    values[data.draw(st.sampled_from([*values, "sliding_window", "num_mtp_layers", "partial_rotary_factor"]))] = data.draw(WRONG)
    (folder / "config.json").write_text(json.dumps(values))
    try:
        transformer, _ = load_folder(folder)
    except PreheatError:
        return
    assert _logits(transformer, [1, 2, 3]).isfinite().all()


# DeepSeek's prediction layers


def test_prediction_layers_go_out_with_their_copies_and_come_back(tmp_path: Path) -> None:
    transformer = _export(DEEPSEEK, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for name in ("model.layers.2.embed_tokens.weight", "model.embed_tokens.weight"):
        assert torch.equal(stored[name], transformer.embedding.weight)
    back = dict(open_folder(tmp_path / "out").ours())
    assert torch.equal(back["predictions.0.project.weight"], transformer.state_dict()["predictions.0.project.weight"])
    stored["model.layers.2.shared_head.head.weight"] += 1
    save_file(stored, tmp_path / "out" / "model.safetensors")
    with _refused("weights.copies", "shared_head.head.weight is not equal to lm_head.weight"):
        dict(open_folder(tmp_path / "out").ours())
    save_file({k: t for k, t in stored.items() if ".layers.2." not in k}, tmp_path / "out" / "model.safetensors")
    bare = open_folder(tmp_path / "out")
    assert (bare.model.mtp, len(bare.notes)) == (None, 1)


# Weights to start from


def test_initial_weights_fit_only_their_model(tmp_path: Path) -> None:
    transformer = _export(LLAMA, tmp_path / "out")
    import_huggingface(tmp_path / "out", tmp_path / "start", shard_bytes=20_000)
    started = build(LLAMA, 9)
    assert _start_from(started, tmp_path / "start") == []
    for name, tensor in transformer.state_dict().items():
        assert torch.equal(started.state_dict()[name], tensor), name
    # A longer reach is a reason to train on; another function is none.
    longer = _with(LLAMA, rope_theta=8_000_000.0)
    (difference,) = _start_from(build(longer, 9), tmp_path / "start")
    assert difference == "model.rope_theta: 500000.0 and 8000000.0"
    for changes in ({"norm_eps": 1e-6}, {"ffn_hidden": 64}, {"tied_embeddings": True}, {"heads": 8, "kv_heads": 4}, {"bias": True}):
        with _refused("initial.model", *changes):
            _start_from(build(_with(LLAMA, **changes), 9), tmp_path / "start")
    same = _with(LLAMA, init_std=0.5, dropout=0.1)
    assert _start_from(build(same, 9), tmp_path / "start") == []


@pytest.mark.parametrize("damage", ["value", "missing", "manifest"])
def test_damaged_initial_weights_are_refused(damage: str, tmp_path: Path) -> None:
    _export(LLAMA, tmp_path / "out")
    import_huggingface(tmp_path / "out", tmp_path / "start")
    file = tmp_path / "start" / "weights" / "model.safetensors"
    stored = load_file(file)
    if damage == "value":
        stored["norm.weight"][3] += 1e-3
    elif damage == "missing":
        del stored["norm.weight"]
    else:
        (file.parent / "manifest.json").write_text("{}")
    save_file(stored, file)
    with _refused({"value": "initial.checksum", "missing": "initial.tensors", "manifest": "weights.manifest"}[damage]):
        _start_from(build(LLAMA, 9), tmp_path / "start")


def test_an_imported_recipe_trains_the_imported_model(tmp_path: Path) -> None:
    model = _with(LLAMA, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_positions=64, beta_fast=32.0, beta_slow=1.0))
    _export(model, tmp_path / "out")
    brought = import_huggingface(tmp_path / "out", tmp_path / "start")
    recipe = load(str(tmp_path / "start" / "recipe.toml")).recipe
    assert unlike(recipe.model, model) == []
    assert any("tokenizer.json" in note for note in brought.notes)

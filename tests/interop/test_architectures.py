"""The worked example of docs/architectures.md, taken from the page and run."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from preheat.arithmetic import Rope
from preheat.errors import PreheatError
from preheat.interop.huggingface import FAMILIES, Setting, export_huggingface, load_folder
from preheat.model import build
from preheat.recipe import Model

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
MODEL = Model(
    layers=2, hidden=64, heads=4, kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=384, norm_eps=1e-6, qk_norm=True,
    rope_theta=1_000_000.0, init_std=0.1,
)  # fmt: skip
SETTING = Setting(Rope(1_000_000.0), 80)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    module = types.ModuleType("qwen3")
    exec(compile(block, str(PAGE), "exec"), module.__dict__)
    return module.QWEN3


@pytest.mark.parametrize("tied", [True, False])
def test_the_example_gives_transformers_logits_both_ways(qwen3: Any, tied: bool, tmp_path: Path) -> None:
    model = MODEL.model_copy(update={"tied_embeddings": tied})
    transformer = build(model, 1).eval()
    with torch.no_grad():
        for name, tensor in transformer.state_dict().items():
            if name.endswith("norm.weight"):
                tensor += 0.3 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))
    families = (*FAMILIES, qwen3)
    exported = export_huggingface(model, transformer.state_dict(), SETTING, tmp_path / "out", families=families)
    assert exported.architecture == "Qwen3ForCausalLM"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    tokens_BT = torch.randint(384, (2, 80), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours_BTV, theirs_BTV = transformer.logits(transformer(tokens_BT)), theirs(tokens_BT).logits
        assert (ours_BTV - theirs_BTV).abs().max() < 1e-4
        theirs.save_pretrained(tmp_path / "theirs")
        back, opened = load_folder(tmp_path / "theirs", families=families)
        assert (back.logits(back(tokens_BT)) - theirs_BTV).abs().max() < 1e-4
    assert (opened.notes, opened.model.tied_embeddings) == ((), tied)


def test_without_the_example_the_model_has_no_class(tmp_path: Path) -> None:
    with pytest.raises(PreheatError, match=r"model\.qk_norm = True \(LlamaForCausalLM has False\)"):
        export_huggingface(MODEL, build(MODEL, 1).state_dict(), SETTING, tmp_path / "out")

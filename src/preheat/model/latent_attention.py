"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values of all heads come from one narrow latent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from preheat import recipe
from preheat.arithmetic import head_dim
from preheat.model.attention import InnerAttention, Sight
from preheat.model.cache import LayerCache
from preheat.model.norm import norm
from preheat.model.rotary import rotate
from preheat.recipe import Model


class LatentAttention(nn.Module):
    """Each head's query and key have a part without position, made from latents, and a part that is turned by position.

    The turned part of the key is one for all heads. The cache holds the keys and values of the heads, not the latent.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        mla = model.mla
        assert mla is not None
        self.latent_dim, self.turned_dim, self.plain_dim, self.value_dim = (
            mla.kv_lora_rank,
            mla.qk_rope_head_dim,
            mla.qk_nope_head_dim,
            mla.v_head_dim,
        )
        self.head_dim = head_dim(model)
        self.query = _Query(model, mla)
        self.latent_down = nn.Linear(model.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=False)
        self.latent_norm = norm(model, mla.kv_lora_rank)
        self.latent_up = nn.Linear(mla.kv_lora_rank, model.heads * (mla.qk_nope_head_dim + mla.v_head_dim), bias=False)
        self.shared_key = nn.Identity()  # the part of the key that all heads share passes here: tensor parallelism gathers it
        self.inner: nn.Module = InnerAttention()
        self.out = nn.Linear(model.heads * mla.v_head_dim, model.hidden, bias=False)

    def forward(self, x_BTD: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        assert sight.rotary is not None
        q_BHTE = self.query(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q_plain, q_turned = q_BHTE.split((self.plain_dim, self.turned_dim), dim=-1)
        latent_BTL, k_turned_BTR = self.latent_down(x_BTD).split((self.latent_dim, self.turned_dim), dim=-1)
        kv_BHTE = self.latent_up(self.latent_norm(latent_BTL)).unflatten(-1, (-1, self.plain_dim + self.value_dim)).transpose(1, 2)
        k_plain, v_BHTE = kv_BHTE.split((self.plain_dim, self.value_dim), dim=-1)
        k_turned = rotate(self.shared_key(k_turned_BTR)[:, None], sight.rotary).expand(-1, k_plain.shape[1], -1, -1)
        q_BHTE = torch.cat((q_plain, rotate(q_turned, sight.rotary)), dim=-1)
        k_BHTE = torch.cat((k_plain, k_turned), dim=-1)
        y_BHTE = self.inner(q_BHTE, k_BHTE, v_BHTE, sight, cache)
        y_BTD: Tensor = self.out(y_BHTE.transpose(1, 2).flatten(2))
        return y_BTD


class _Query(nn.Module):
    """The projection to queries: straight from the stream, or through a latent of its own."""

    def __init__(self, model: Model, mla: recipe.LatentAttention) -> None:
        super().__init__()
        queries = model.heads * head_dim(model)
        self.down = nn.Linear(model.hidden, mla.q_lora_rank, bias=False) if mla.q_lora_rank else None
        self.norm = norm(model, mla.q_lora_rank) if mla.q_lora_rank else None
        self.up = nn.Linear(mla.q_lora_rank or model.hidden, queries, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.down is not None and self.norm is not None:
            x_BTD = self.norm(self.down(x_BTD))
        q_BTQ: Tensor = self.up(x_BTD)
        return q_BTQ

"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): layers that predict tokens further ahead, for training only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from preheat.model.attention import Sight
from preheat.model.norm import norm
from preheat.recipe import Model


class Prediction(nn.Module):
    """The layer of one depth. Depth k joins, at position i, what the depth before says there with the embedding of token i + k.

    What it hands to the head and to the next depth is normalised, as is what the first depth takes from the model: so do Megatron-LM
    (multi_token_prediction.py) and vLLM (deepseek_mtp.py), and the joint projection takes the embedding first as their `eh_proj` does.
    The paper writes it second, which is the same with the columns of the matrix in another order.
    """

    def __init__(self, model: Model, block: nn.Module) -> None:
        super().__init__()
        self.hidden_norm = norm(model, model.hidden)
        self.embedding_norm = norm(model, model.hidden)
        self.project = nn.Linear(2 * model.hidden, model.hidden, bias=False)
        self.block = block
        self.norm = norm(model, model.hidden)

    def forward(self, hidden_BTD: Tensor, embedded_BTD: Tensor, sight: Sight) -> tuple[Tensor, Tensor | None]:
        """Normalised hidden states, B x T x D, and the penalty of the block's router.

        Args:
            hidden_BTD: of the depth before, or of the model.
            embedded_BTD: of the tokens k further.
        """
        x_BTD = self.project(torch.cat((self.embedding_norm(embedded_BTD), self.hidden_norm(hidden_BTD)), dim=-1))
        # Autocast rounds the product; the block's stream is as exact as the model's.
        x_BTD = x_BTD.to(hidden_BTD.dtype)
        x_BTD, penalty = self.block(x_BTD, sight)
        return self.norm(x_BTD), penalty


def ahead(tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None, depth: int) -> tuple[Tensor, Tensor]:
    """The tokens that a depth reads and the labels that it predicts at each position of whole sequences, both B x T.

    The last `depth` positions have no label and are not scored (-1). Where documents do not see each other, neither is a position whose
    further tokens are of another one.
    """
    known_BT = torch.cat((tokens_BT, labels_BT[:, -1:].clamp(min=0)), dim=1)
    read_BT = nn.functional.pad(known_BT[:, depth:], (0, depth - 1))
    labels_BT = nn.functional.pad(labels_BT[:, depth:], (0, depth), value=-1)
    if documents_BT is not None:
        others_BT = nn.functional.pad(documents_BT[:, depth:], (0, depth), value=-1)
        labels_BT = labels_BT.masked_fill(others_BT != documents_BT, -1)
    return read_BT, labels_BT

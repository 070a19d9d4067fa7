"""Which earlier tokens a token sees, and where its document begins."""

from __future__ import annotations

import torch
from torch import Tensor


def seen(length: int, device: torch.device, documents_BT: Tensor | None = None, window: int | None = None) -> Tensor | None:
    """True where a query (row) sees a key (column), B x 1 x T x T or T x T; None when that is itself and all before it.

    Args:
        documents_BT: a number per token that is equal within a document and differs between documents; a token sees only its own.
        window: positions that a token sees, itself included.
    """
    if window is not None and window >= length:
        window = None
    if documents_BT is None and window is None:
        return None
    position_T = torch.arange(length, device=device)
    distance_TT = position_T[:, None] - position_T
    seen_TT = distance_TT >= 0
    if window is not None:
        seen_TT &= distance_TT < window
    if documents_BT is None:
        return seen_TT
    return (seen_TT & (documents_BT[:, :, None] == documents_BT[:, None, :]))[:, None]


def documents(tokens_BT: Tensor, eod: int) -> Tensor:
    """The number of each token's document within its sample, B x T: the end-of-document token opens the next one."""
    return (tokens_BT == eod).cumsum(dim=1)


def positions(documents_BT: Tensor) -> Tensor:
    """The position of each token within its document, from 0, B x T."""
    index_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    opens_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    opens_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return index_T - torch.where(opens_BT, index_T, 0).cummax(dim=1).values

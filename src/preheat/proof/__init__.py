"""Plans held against the real model: ranks are built at the real number of ranks, without GPUs, other processes or memory."""

from preheat.proof.proof import Figure, Proof, RankProof, prove

__all__ = ["Figure", "Proof", "RankProof", "prove"]

"""Seconds of collectives on the links between GPUs: ranks of a group lie `stride` apart, as in Megatron-LM's order of axes."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.hardware import Gpu
from preheat.plan.constants import Common

TO_HOST = 20e9
"""Bytes/s between a GPU and its host: an assumption, two thirds of what PCIe 4.0 x16 is sold for."""


@dataclass(frozen=True)
class Links:
    """What joins the GPUs: the links of a domain, and the network between domains."""

    domain: int
    link: float
    """Bytes/s that a GPU really sends inside a domain."""
    network: float
    """Bytes/s that a GPU really sends out of it."""
    common: Common

    @classmethod
    def of(cls, gpu: Gpu, common: Common) -> Links:
        """The links of a kind of GPU in its usual server."""
        return cls(gpu.domain, gpu.link_bandwidth * common.link, gpu.network_bandwidth * common.network, common)

    def inside(self, size: int, stride: int) -> int:
        """How many ranks of a group of `size` ranks, `stride` apart, share a domain."""
        return max(1, min(size, self.domain // stride)) if stride < self.domain else 1

    def bandwidth(self, size: int, stride: int) -> float:
        """Bytes/s at which a ring over the group runs: the links, or its members' network cards in a domain together where that is less."""
        members = self.inside(size, stride)
        return self.link if members == size else min(self.link, self.network * members)

    def latency(self, size: int, stride: int) -> float:
        """Seconds of a collective over the group with nothing to send."""
        members = self.inside(size, stride)
        return self.common.latency * (members - 1) + self.common.network_latency * (size / members - 1)

    def gather(self, whole: float, size: int, stride: int) -> float:
        """Seconds of a ring all-gather that leaves `whole` bytes on every rank, or of the reduce-scatter that is its mirror image."""
        if size == 1:
            return 0.0
        return whole * (size - 1) / size / self.bandwidth(size, stride) + self.latency(size, stride)

    def exchange(self, each: float, copies: int, size: int, stride: int) -> float:
        """Seconds of an all-to-all in which every rank sends each of its tokens, `each` bytes in all, to `copies` ranks taken evenly.

        A token crosses the network once for each domain that wants it and is copied on there (arXiv 2412.19437, section 3.2.2).
        """
        if size == 1:
            return 0.0
        members = self.inside(size, stride)
        domains = size / members
        wanted = (domains - 1) * (1 - (1 - 1 / domains) ** copies)
        return max(each * copies * (members - 1) / members / self.link, each * wanted / self.network) + self.latency(size, stride)

    def send(self, each: float, stride: int) -> float:
        """Seconds of a message to the rank `stride` further on."""
        return each / (self.link if stride < self.domain else self.network) + self.common.latency

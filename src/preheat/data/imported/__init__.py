"""Token ids that another program made, as prepared data."""

from preheat.data.imported.take import take

__all__ = ["take"]

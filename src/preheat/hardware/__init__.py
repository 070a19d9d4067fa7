"""What a run stands on: kinds of GPU with their memory, peaks, links and prices, and a number of them. SI base units throughout."""

from preheat.hardware.cluster import Cluster
from preheat.hardware.gpu import Gpu, catalog, find, user_file
from preheat.hardware.recognise import recognised

__all__ = ["Cluster", "Gpu", "catalog", "find", "recognised", "user_file"]

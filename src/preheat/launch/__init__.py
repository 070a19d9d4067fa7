"""How the processes of a run are started. Standard library only: whoever starts them does not load what they need."""

from preheat.launch.stopping import Interrupted, Stop, parse_limit
from preheat.launch.workers import LAUNCHER, REQUEUE, STOPPING, shared_environment, start_workers

__all__ = ["LAUNCHER", "REQUEUE", "STOPPING", "Interrupted", "Stop", "parse_limit", "shared_environment", "start_workers"]

"""How the processes of a run are started. Standard library only: whoever starts them does not load what they need."""

from preheat.launch.workers import LAUNCHER, shared_environment, start_workers

__all__ = ["LAUNCHER", "shared_environment", "start_workers"]

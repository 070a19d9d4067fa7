"""The preparation of data as tasks over shards: restartable, their outputs checked, their result independent of how they are run."""

from preheat.data.pipeline.plan import Plan, divided, shard_size
from preheat.data.pipeline.run import Backend, local_backend, perform_all
from preheat.data.pipeline.tasks import Context

__all__ = ["Backend", "Context", "Plan", "divided", "local_backend", "perform_all", "shard_size"]

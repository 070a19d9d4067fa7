"""Numbers that no command means: they are refused before anything is worked out from them."""

from __future__ import annotations

from preheat.megatron.settings import Settings

_MOST = {
    "num_layers": 10_000,
    "mtp_num_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_query_groups": 100_000,
    "num_experts": 100_000,
    "pipeline_model_parallel_size": 10_000,
    "num_virtual_stages_per_pipeline_rank": 10_000,
    "global_batch_size": 10**9,
    "seed": 10**30,
}
_OTHERWISE = 10**15
_MOST_GPUS = 10**7


def beyond_measure(settings: Settings) -> list[tuple[str, int, int]]:
    """Flag, number and the largest that is believed, for each number that is above it."""
    found = [("--gpus", settings.gpus, _MOST_GPUS)] if settings.gpus > _MOST_GPUS else []
    for name, argument in settings.given.items():
        value, most = settings[name], _MOST.get(name, _OTHERWISE)
        numbers = value if isinstance(value, list | tuple) else [value]
        found += [(argument.flag, int(number), most) for number in numbers if _is_number(number) and abs(number) > most]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != float("inf")

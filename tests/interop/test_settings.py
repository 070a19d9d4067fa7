"""The arguments of each version, and what a command's values become."""

from __future__ import annotations

import pytest

from preheat.errors import PreheatError
from preheat.megatron import VERSIONS, options, read_commands, settle


@pytest.mark.parametrize(("version", "count"), [("0.17", 704), ("0.18", 750), ("0.19", 807)])
def test_every_argument_of_the_parsers_is_known(version: str, count: int) -> None:
    # The wheels 0.17.1, 0.18.2 and 0.19.2 have 705, 751 and 808 arguments with --help.
    assert len({option.flag for option in options(version).values()}) == count


def _settle(text: str, version: str = "0.19", gpus: int = 8):  # type: ignore[no-untyped-def]
    (command,) = read_commands(text)
    return settle(command, gpus, version)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("--lr 3e-4", "lr", 3e-4),
        ("--num-layers 32", "num_layers", 32),
        ("--bf16", "bf16", True),
        ("--disable-bias-linear", "add_bias_linear", False),
        ("--lr=3e-4", "lr", 3e-4),
        ("--moe-layer-freq '([0]*3+[1]*2)'", "moe_layer_freq", [0, 0, 0, 1, 1]),
        ("--moe-layer-freq '([1]+[0]*2)*2+[1]'", "moe_layer_freq", [1, 0, 0, 1, 0, 0, 1]),
        ("--moe-layer-freq 2", "moe_layer_freq", 2),
        ("--window-size '(127,0)'", "window_size", (127, 0)),
        ("--moe-aux-loss-coeff 1e-2 1e-4", "moe_aux_loss_coeff", [1e-2, 1e-4]),
        ("--no-rope-fusion", "apply_rope_fusion", False),
        ("--rope-theta 500000", "rotary_base", 500_000),
        ("--fp8-hybrid", "fp8", "hybrid"),
        ("--seq-length 4096 --train-tokens 14.8T", "train_samples", 3_613_281_250),
        ("--use-flash-attn-v2", "attention_backend", "flash"),
        ("--bf16", "adam_beta2", 0.999),
        ("--bf16", "rotary_base", 10_000),
        ("--bf16", "kv_lora_rank", 32),
    ],
)
def test_values(text: str, name: str, value: object) -> None:
    assert _settle(text)[name] == value


@pytest.mark.parametrize(
    ("text", "kind", "version"),
    [
        ("--nonsense 1", "unknown", "0.19"),
        ("--tensor-model-parallel 2", "unknown", "0.19"),
        ("--num_layers 2", "unknown", "0.19"),
        ("--rope-theta 1", "renamed", "0.19"),
        ("--fp8-hybrid", "removed", "0.19"),
        ("--step-batch-size-schedule 0:1", "other-version", "0.17"),
        ("--use-legacy-models", "other-version", "0.18"),
        ("--batch-size 8", "retired", "0.19"),
        ("--use-mcore-models", "inert", "0.19"),
        ("--rampup-batch-size 1 1 1", "ignored", "0.18"),
        ("--train-samples 14.8T", "type", "0.19"),
        ("--rotary-base 5e5", "type", "0.19"),
        ("--moe-layer-freq '[1]*99999999'", "type", "0.19"),
        ("--moe-layer-freq '__import__(1)+[1]'", "type", "0.19"),
        ("--rampup-batch-size [1,2,3]", "count", "0.17"),
        ("--lr", "count", "0.19"),
        ("--lr-decay-style wsd", "choice", "0.19"),
        ("--moe-router-score-function sqrtsoftplus", "choice", "0.17"),
        ("--bf16 true", "stray", "0.19"),
        ("--lr 1 --lr 2", "repeated", "0.19"),
        ("--num-layers $N", "open", "0.19"),
    ],
)
def test_faults(text: str, kind: str, version: str) -> None:
    assert kind in {fault.kind for fault in _settle(text, version).faults}


def test_a_variable_that_may_hold_arguments_is_no_value_and_leaves_the_rest_open() -> None:
    for text in ("--bf16 $MORE --lr 1", "$MORE --lr 1 --bf16", "--lr 1 $MORE --bf16"):
        settings = _settle(f"torchrun pretrain_gpt.py {text}\n")
        assert (settings["bf16"], settings["lr"], settings.partial) == (True, 1.0, True)
        assert {fault.kind for fault in settings.faults} == {"open"}
    assert not _settle("torchrun pretrain_gpt.py --save $MORE --lr $LR\n").partial


def test_a_blank_behind_the_backslash_is_named() -> None:
    faults = _settle("torchrun pretrain_gpt.py --lr 1 \\ \n  --bf16\n").faults
    assert [(fault.kind, "Remove the blank behind" in fault.fix) for fault in faults] == [("stray", True), ("count", True)]


def test_an_array_without_quotes_cuts_a_value() -> None:
    settings = _settle('A=(--step-batch-size-schedule "0:1 1B:2")\ntorchrun pretrain_gpt.py ${A[@]}\n')
    (fault,) = settings.faults
    assert (fault.kind, settings["step_batch_size_schedule"]) == ("count", "0:1 1B:2")
    assert '"${ARGS[@]}"' in fault.fix


def test_a_yaml_key_given_twice_holds_last_and_is_told() -> None:
    settings = _settle("lr: 1\nbf16: true\nlr: 2\n")
    assert (settings["lr"], [fault.kind for fault in settings.faults]) == (2.0, ["repeated"])


def test_a_text_of_unknown_flags_is_no_command() -> None:
    with pytest.raises(PreheatError, match="unknown arguments"):
        _settle("\n".join(f"--flag-{number}" for number in range(20_000)))


def test_the_ramp_is_heeded_up_to_017_only() -> None:
    faults = {version: {fault.kind for fault in _settle("--rampup-batch-size 1 1 1", version).faults} for version in VERSIONS}
    assert faults == {"0.17": set(), "0.18": {"ignored"}, "0.19": {"ignored"}}

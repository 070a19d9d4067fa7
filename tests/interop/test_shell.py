"""Reading scripts without running them. The oracle is bash itself: what it would pass to a program is what we read."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.megatron import read_commands

SCRIPTS = {
    "continuations": "torchrun --nproc_per_node 8 pretrain_gpt.py --lr 3e-4 \\\n  --bf16 \\\n  --min-lr 3e-5\n",
    "comments": "# --lr 1\ntorchrun pretrain_gpt.py --lr 2 # --min-lr 3\n",
    "variables": "LR=3e-4\nARGS='--bf16 --swiglu'\ntorchrun pretrain_gpt.py --lr $LR ${ARGS} --save \"$ARGS\"\n",
    "defaults": "torchrun pretrain_gpt.py --lr ${UNSET_LR:-3e-4} --seed ${UNSET_SEED-7} --save ${UNSET_A:-${UNSET_B:-x}}/y\n",
    "alternative": "A=1\ntorchrun pretrain_gpt.py ${A:+--bf16} ${UNSET_B:+--fp16} --lr 1\n",
    "arrays": 'M=(\n  --num-layers 32 # deep\n  --name "two words"\n)\nM+=(--bf16)\ntorchrun pretrain_gpt.py "${M[@]}" --last\n',
    "array length one": "M=(--bf16)\ntorchrun pretrain_gpt.py ${M[@]} --lr 1\n",
    "appending": "A=--bf16\nA+=' --swiglu'\ntorchrun pretrain_gpt.py $A\n",
    "arithmetic": "N=8\nM=$((N*4+2))\ntorchrun pretrain_gpt.py --global-batch-size $((M * (N - 1) / 3)) --seed $((-7/2)) --x $((17 % 5))\n",
    "quotes": "torchrun pretrain_gpt.py --a 'it'\"'\"'s' --b \"x\\\"y\" --c a\\ b --d \"\" --e '$HOME'\n",
    "redirections": "torchrun pretrain_gpt.py --lr 1 > log.txt 2>&1\n",
    "pipes": "torchrun pretrain_gpt.py --lr 1 2>&1 | tee log.txt\n",
    "prefix": "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun pretrain_gpt.py --lr 1\n",
    "a condition that holds": "N=4\nif [ $N -gt 2 ]; then\n  A=--bf16\nelse\n  A=--fp16\nfi\ntorchrun pretrain_gpt.py $A\n",
    "a condition that fails": "T=\nif [[ -n $T ]]; then A=--bf16; else A=--fp16; fi\ntorchrun pretrain_gpt.py $A\n",
    "nested": "if [ a != a ]; then\n if [ 1 = 1 ]; then A=x; fi\nelif [ ! b = a ]; then A=y; fi\ntorchrun pretrain_gpt.py --a $A\n",
    "semicolons": "LR=1; export X=2; torchrun pretrain_gpt.py --lr $LR\n",
    "here document": "cat <<EOF >/dev/null\n--lr 9\nEOF\ntorchrun pretrain_gpt.py --lr 1\n",
    "equals": "torchrun pretrain_gpt.py --lr=3e-4 --save=/a=b\n",
    "brackets in quotes": 'torchrun pretrain_gpt.py --moe-layer-freq "([0]*3+[1]*58)" --lr 1\n',
    "a case": "S=8B\ncase $S in\n 1B) L=10;;\n 8B|9B) L=32 ;;\n *) L=99;;\nesac\ntorchrun pretrain_gpt.py --num-layers $L\n",
    "a case with nothing that fits but the rest": "case x in (--a|--b) L=1;; *) L=2; esac\ntorchrun pretrain_gpt.py --seed $L\n",
    "arguments of a script that has none": 'torchrun pretrain_gpt.py --lr 1 "$@" $* --bf16\n',
    "an empty array": 'A=()\ntorchrun pretrain_gpt.py --lr 1 "${A[@]}" "${A[@]:-}" --bf16\n',
    "a loop over arguments": "L=1\nwhile [[ $# -gt 0 ]]; do case $1 in --l) L=$2; shift 2;; *) shift;; esac; done\n"
    "torchrun pretrain_gpt.py --num-layers $L\n",
    "functions": 'run() {\n  torchrun pretrain_gpt.py "$@" --bf16\n}\n'
    "function set_rate { RATE=$1; }\nset_rate 3e-4\nrun --lr $RATE --seed 2\n",
    "a function behind ||": "LR=1\nrun() { torchrun pretrain_gpt.py --lr $LR; }\nrun || exit 1\n",
    "locals": "LR=1\nf() { local LR=5 N=2; SEED=$LR; }\nf\ntorchrun pretrain_gpt.py --lr $LR --seed $SEED --x=${N:-none}\n",
    "bash -c": "export LR=1e-4\nbash -c 'torchrun pretrain_gpt.py --lr $LR --bf16'\n",
    "bash -c with its variables replaced": 'export Y=7; LR=1e-4\nbash -c "torchrun pretrain_gpt.py --lr $LR --save \\"a b\\" --x \\$Y"\n',
    "a command in a variable": 'export RUN="torchrun pretrain_gpt.py"; export ARGS=" \\\n  --lr 1 \\\n  --bf16"\n'
    "bash -c '$RUN --seed 3 $ARGS'\n",
    "eval": 'CMD="torchrun pretrain_gpt.py --save \'a b\' --lr 1"\neval $CMD --bf16\neval "true"\n',
    "default that is assigned": ": ${UNSET_LR:=3e-4} ${UNSET_N=5}\ntorchrun pretrain_gpt.py --lr $UNSET_LR --seed $UNSET_N\n",
    "a test and what follows it": '[ -z "$UNSET_X" ] && X=5\n[ -n "$X" ] || X=6\n[[ $X == 4 || -n $X && 3 -lt 4 ]] && Y=1\n'
    "[ 1 = 2 ] && { X=7; Y=8; }\ntorchrun pretrain_gpt.py --seed $X --x $Y\n",
    "a negated condition": "if ! [ a = b ]; then A=1; else A=2; fi\ntorchrun pretrain_gpt.py --x $A\n",
    "patterns in conditions": "M=HybridModel-8B\nif [[ $M == *Hybrid* ]] && [ $M != x ]; then A=1; fi\ntorchrun pretrain_gpt.py --x $A\n",
    "cut and replaced": "X=a/b.tar.gz\ntorchrun pretrain_gpt.py --a ${X%.gz} --b ${X%%.*} --c ${X#*/} --d ${X##*/} --e ${X/a/c}"
    " --f ${X//a/_} --g ${X:2:5} --h ${X:4} --i ${X^^} --j ${#X}\n",
    "length of an array": "A=(1 2 3)\ntorchrun pretrain_gpt.py --a ${#A[@]} --b ${A[1]} --c ${A}\n",
    "arithmetic with brackets": "N=4\n((M=N*2))\ntorchrun pretrain_gpt.py --a $(( (N+1)*(2) )) --b $(((N+1)*(M)))\n",
    "escapes": "torchrun pretrain_gpt.py --a $'x\\ty' --b $\"z\"\n",
    "declared": "declare -a A=(--lr 1)\nlocal_rate=2\nreadonly -- B=--bf16\ntorchrun pretrain_gpt.py ${A[@]} $B\n",
    "unset and set": 'A=--fp16\nunset A\nset -- x --lr 1\nshift 1\ntorchrun pretrain_gpt.py $A "$@"\n',
    "a pipe behind a flag": "torchrun pretrain_gpt.py --lr 1 --bf16 | cat\n",
    "what is only shown": "echo torchrun pretrain_gpt.py --lr 9\nprintf 'torchrun pretrain_gpt.py --lr 8'\n"
    "torchrun pretrain_gpt.py --lr 1\n",
    "what is behind an exit": "torchrun pretrain_gpt.py --lr 1\nexit 0\ntorchrun pretrain_gpt.py --lr 2\n",
    "a script in a here-document": "export Y=7; LR=3\nbash <<EOF\ntorchrun pretrain_gpt.py --lr $LR --x \\$Y\nEOF\n",
    "env": "env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun pretrain_gpt.py --lr 1\n",
    "a carriage return at each end": "torchrun pretrain_gpt.py --lr 1 \\\n  --bf16 \\\n  --seed 2\n",
    "multiple lines in quotes": 'ARGS="\n  --bf16\n  --lr 1\n"\ntorchrun pretrain_gpt.py $ARGS\n',
}


def _ours(text: str) -> list[str]:
    (command,) = read_commands(text)
    return [word for argument in command.arguments for word in (argument.flag, *argument.values)]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_means_what_bash_passes_on(name: str, tmp_path: Path) -> None:
    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word" >> "$WORDS"; done\n')
    stand_in.chmod(0o755)
    words = tmp_path / "words"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WORDS": str(words)}
    subprocess.run(["bash", "-c", SCRIPTS[name]], check=True, env=environment, cwd=tmp_path, timeout=10, capture_output=True)
    passed = words.read_text().split("\0")[:-1]
    arguments = passed[passed.index("pretrain_gpt.py") + 1 :]
    expected = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    assert _ours(SCRIPTS[name]) == expected


def test_lines_launcher_and_environment() -> None:
    text = "export NCCL_DEBUG=INFO\nM=(\n  --num-layers 2\n)\ntorchrun --nproc-per-node=8 --nnodes 4 \\\n"
    text += "  x/pretrain_gpt.py ${M[@]} \\\n  --lr 1\n"
    (command,) = read_commands(text, "run.sh")
    assert [(argument.flag, argument.line) for argument in command.arguments] == [("--num-layers", 3), ("--lr", 7)]
    assert [(argument.flag, argument.values) for argument in command.launcher] == [("--nproc-per-node", ("8",)), ("--nnodes", ("4",))]
    assert command.environment == {"NCCL_DEBUG": "INFO"}


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f'X=$(touch {mark})\ntorchrun pretrain_gpt.py --save "`touch {mark}`" --lr $X\n'
    (command,) = read_commands(text)
    assert not mark.exists()
    assert len([note for _, note in command.notes if "not run" in note]) == 2


def test_a_quoted_launch_and_several_launches() -> None:
    (command,) = read_commands("srun bash -c 'cd /x && torchrun pretrain_gpt.py --lr 1'\n")
    assert command.arguments[0].values == ("1",)
    first, second = read_commands("torchrun pretrain_gpt.py --lr 1\ntorchrun pretrain_gpt.py --lr 2\n")
    assert (first.arguments[0].values, second.arguments[0].values) == (("1",), ("2",))


def test_a_missing_backslash_is_seen() -> None:
    (command,) = read_commands("torchrun pretrain_gpt.py --lr 1\n  --min-lr 2\n")
    assert [word.text for word in command.stray] == ["--min-lr"]


def test_bare_flags_and_yaml() -> None:
    (flags,) = read_commands("--num-layers 2\n--bf16\n")
    assert (flags.form, [argument.flag for argument in flags.arguments]) == ("flags", ["--num-layers", "--bf16"])
    text = 'num-layers: 2\nbf16: true\nfp16: false\nrampup_batch_size: [1, 2, 3] # ramp\nsave: "a b"\ndata-path: 1 a\n'
    (command,) = read_commands(text)
    found = [(argument.flag, argument.values, argument.line) for argument in command.arguments]
    assert found[:3] == [("--num-layers", ("2",), 1), ("--bf16", (), 2), ("--rampup-batch-size", ("1", "2", "3"), 4)]
    assert found[3:] == [("--save", ("a b",), 5), ("--data-path", ("1", "a"), 6)]


def test_the_test_configurations_of_megatron_itself() -> None:
    text = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
TEST_TYPE: regular
BEFORE_SCRIPT: |
  echo --lr: 9
MODEL_ARGS:
  --num-layers: 12
  --auto-detect-ckpt-format:
    true
  --recompute-modules: "[core_attn mlp]"
  --data-path:
    - 0.5
    - a
METRICS:
  - "lm loss"
"""
    (command,) = read_commands(text)
    assert command.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert [(argument.flag, argument.values) for argument in command.arguments] == [
        ("--num-layers", ("12",)),
        ("--auto-detect-ckpt-format", ()),
        ("--recompute-modules", ("core_attn", "mlp")),
        ("--data-path", ("0.5", "a")),
    ]
    assert [line for line, _ in command.notes] == [3, 14]


def test_the_branch_that_is_read() -> None:
    chosen = "A=x\nif [[ $A == x ]]; then\n  F=--bf16\nelif [ $A = y ]; then\n  F=--fp16\nelse\n  F=--swiglu\nfi\n"
    for value, flag in (("x", "--bf16"), ("y", "--fp16"), ("z", "--swiglu")):
        (command,) = read_commands(chosen.replace("A=x", f"A={value}") + "torchrun pretrain_gpt.py $F\n")
        assert ([argument.flag for argument in command.arguments], command.notes) == ([flag], ())
    unknown = "if [ -z $B ]; then F=--bf16; if true; then F+=' --fp16'; fi; else F=--swiglu; fi\ntorchrun pretrain_gpt.py $F\n"
    (command,) = read_commands(unknown)
    assert [argument.flag for argument in command.arguments] == ["--bf16", "--fp16"]
    assert command.notes == ((1, "the variable B is not set here: the condition takes it as empty"),)
    unknown = "if [ -f x ]; then F=--bf16; else F=--swiglu; fi\ntorchrun pretrain_gpt.py $F\n"
    (command,) = read_commands(unknown)
    assert [argument.flag for argument in command.arguments] == ["--bf16"]
    assert [line for line, note in command.notes if "first part is read" in note] == [1]


def test_a_flag_is_placed_where_it_stands_also_in_a_text_that_is_used_elsewhere() -> None:
    text = (
        'LR=1\n# --lr 9\nARGS=" \\\n  --bf16 \\\n  --lr $LR \\\n"\nRUN="torchrun x/pretrain_gpt.py $ARGS --seed 2"\nsrun bash -c "$RUN"\n'
    )
    (command,) = read_commands(text, "run.sh")
    assert [(argument.flag, argument.line) for argument in command.arguments] == [("--bf16", 4), ("--lr", 5), ("--seed", 7)]
    assert command.program == "pretrain_gpt.py"


def test_only_what_concerns_the_launch_is_noted() -> None:
    text = 'D=$(date)\nN=$UNKNOWN\nmkdir -p $LOGS\nsource env.sh\ntorchrun pretrain_gpt.py --save $N/x --lr 1 "$@"\n'
    (command,) = read_commands(text)
    assert command.notes == (
        (2, "the variable UNKNOWN is not set here"),
        (4, "`source env.sh` is not read: what it sets is not known"),
        (5, "the script's own arguments ($@) are not known: none are read"),
    )


def test_a_loop_is_read_once_and_says_so() -> None:
    (command,) = read_commands("for MBS in 1 2 4 8; do\n  torchrun pretrain_gpt.py --micro-batch-size $MBS\ndone\n")
    assert command.arguments[0].values == ("1",)
    assert command.notes == ((1, "a loop of 4 starts: it is read once, with MBS=1"),)


def test_functions_that_nothing_calls_count_where_there_is_no_other_launch() -> None:
    uncalled = "train() { torchrun pretrain_gpt.py --lr 1; }\nexport -f train\n"
    (command,) = read_commands(uncalled + "srun bash -c train\n")
    assert command.arguments[0].values == ("1",)
    (command,) = read_commands(uncalled + "torchrun pretrain_gpt.py --lr 2\n")
    assert command.arguments[0].values == ("2",)


def test_the_environment_in_front_of_a_launcher() -> None:
    (command,) = read_commands("env A_B=1 torchrun pretrain_gpt.py --lr 1\n")
    assert command.environment == {"A_B": "1"}


def test_a_variable_of_slurm_leaves_a_condition_open() -> None:
    text = "if [ $SLURM_NNODES -gt 1 ]; then A=1; else A=2; fi\ntorchrun pretrain_gpt.py --seed $A\n"
    (command,) = read_commands(text)
    assert any("not known" in note for _, note in command.notes)


HOSTILE = {
    "a long line": "--lr " + "9" * 200_000,
    "ten megabytes": "x" * 10_000_000,
    "a NUL byte": "torchrun pretrain_gpt.py --lr 1\0\n",
    "an open quote": "torchrun pretrain_gpt.py --lr '1\n",
    "an open bracket": "torchrun pretrain_gpt.py --lr ${X\n",
    "an open array": "M=(--lr 1\n",
    "doubling": "A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 60 + "torchrun pretrain_gpt.py --save $A\n",
    "a YAML tag": "lr: !!python/object/apply:os.system [x]\n",
    "a YAML anchor": "lr: &a 1\n",
    "no command": "ls -la\n",
    "nothing": "",
    "only shown": "echo torchrun pretrain_gpt.py --lr 1\n",
    "many launches": "torchrun pretrain_gpt.py --lr 1\n" * 20_000,
    "functions that call each other": "a() { b; b; }\nb() { a; a; }\na\ntorchrun pretrain_gpt.py --lr 1\n",
    "a list without end": "a:\n" + "  - 1\n" * 150_000,
    "cuts without end": "A=" + "a" * 900 + "\n" + "B=${A%%*b*c*d}\n" * 10_000 + "torchrun pretrain_gpt.py --lr 1\n",
    "brackets that open": "torchrun pretrain_gpt.py --save " + "$(" * 50_000 + "\n",
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_quickly(name: str) -> None:
    with pytest.raises(PreheatError):
        read_commands(HOSTILE[name])


@pytest.mark.timeout(10)
def test_defaults_inside_defaults_are_left_open_somewhere() -> None:
    (command,) = read_commands("torchrun pretrain_gpt.py --save " + "${A:-" * 3_000 + "}" * 3_000 + "\n")
    assert any("not evaluated" in note for _, note in command.notes)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab-=$(){}[]\"'`\\ \n#;|&<>:+*/%09AZ_", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(PreheatError):
        read_commands(text)

"""What `check` says before and beside its rules: of a file that is no recipe, and of `[[ignore]]`."""

from __future__ import annotations

READING = {
    "recipe.file": """\
A recipe is a name of the catalog or the path of a .toml file.

Example: `preheat check lama3-8b`; the path of a folder.""",
    "recipe.encoding": """\
A recipe file is text in UTF-8.

Example: a file that an editor saved as UTF-16 or Latin-1.""",
    "recipe.toml": """\
A recipe file is TOML 1.0; nothing in it is run, included or filled in.

Example: a key or a table given twice; a text without quotes; YAML; a number of thousands of digits; values nested hundreds deep.
Source: toml.io/en/v1.0.0; case L05 (Peterande/D-FINE issue 354).""",
    "recipe.extends": """\
`extends` names one recipe: of the catalog, or a .toml file by its path from the file that extends it; never in a circle.

Example: a.toml extends b.toml, and b.toml extends a.toml; extends = "/etc/passwd".
Source: case L03 (NVIDIA-NeMo/Megatron-Bridge pull 3142): a recipe reads recipes and nothing else.""",
    "recipe.sources": """\
`[sources]` says where numbers come from, one text for a dotted key or a table.

Example: "schedule.peak_lr" = 3 in [sources]; a note is a text.""",
    "recipe.set": """\
`--set key.path=value` changes one value; entries of lists are named by their `name` or number from 0.

A value is written as in the file; a text needs no quotes.
Example: --set schedule.peak_lr=1e-3; --set stage.anneal.until=95%; --set model.layers (without a value) is refused.""",
    "recipe.unknown-key": """\
Every key is known; one that is not would do nothing, and the recipe would say something that does not happen.

Example: hiden = 4096 in [model]; rampup in [batch].
Source: cases C03 (NVIDIA/Megatron-LM pull 4411), A07 (NVIDIA-NeMo/Megatron-Bridge pull 801).""",
    "recipe.missing-key": """\
Every key without a default is set, in the file or in one that it extends.

Example: [schedule] without `length`.""",
    "recipe.value": """\
Every value is of its key's kind and within its bounds: whole numbers stay whole, amounts carry a unit, words come from a list.

Example: layers = "32"; warmup = 2000 (steps, samples or tokens?); compute = "float16".""",
    "ignore.unknown-rule": """\
`[[ignore]]` names a rule that exists.

Example: rule = "model.token"; `preheat check --explain all` lists them.""",
    "ignore.error": """\
`[[ignore]]` silences what can be argued about, and no error that stops a run.

Example: rule = "layout.ranks".""",
    "ignore.unused": """\
Every entry of `[[ignore]]` silences something; one that does not is left over.

Example: rule = "model.dropout" in a recipe without dropout.""",
}
"""Name of a finding -> what it is about, with an example."""

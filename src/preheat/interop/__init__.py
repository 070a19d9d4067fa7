"""Recipes to and from other programs. The files about Megatron-LM need no torch and no Megatron-LM."""

from preheat.interop.megatron_export import Export, export_megatron
from preheat.interop.megatron_import import Imported, import_megatron

__all__ = ["Export", "Imported", "export_megatron", "import_megatron"]

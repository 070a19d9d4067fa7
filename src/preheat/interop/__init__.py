"""Recipes to and from other programs. The files about Megatron-LM need no torch and no Megatron-LM."""

from preheat.interop.megatron_export import Export, export_megatron
from preheat.interop.megatron_import import Imported, import_megatron
from preheat.interop.torchtitan import TitanExport, export_torchtitan

__all__ = ["Export", "Imported", "TitanExport", "export_megatron", "export_torchtitan", "import_megatron"]

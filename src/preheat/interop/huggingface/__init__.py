"""Models to and from the folders of Hugging Face's `transformers`, which itself is not needed."""

from preheat.interop.huggingface.bring import Brought, import_huggingface
from preheat.interop.huggingface.card import Provenance, Sourced
from preheat.interop.huggingface.family import Setting
from preheat.interop.huggingface.read import Opened, load_folder, open_folder
from preheat.interop.huggingface.registry import FAMILIES
from preheat.interop.huggingface.write import DTYPES, Exported, export_huggingface

__all__ = [
    "DTYPES",
    "FAMILIES",
    "Brought",
    "Exported",
    "Opened",
    "Provenance",
    "Setting",
    "Sourced",
    "export_huggingface",
    "import_huggingface",
    "load_folder",
    "open_folder",
]

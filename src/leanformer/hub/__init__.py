"""Models in folders of Hugging Face's layout: written, read, pushed and fetched.

    config.json         what the model is, for people and programs that do not open its weights
    model.safetensors   the checkpoint that `lf.save` writes, which alone is enough to load the model
    README.md           the model card, written from the checkpoint's card and from result files

Folders that timm or transformers wrote are read too, where their blocks are understood.
"""

from .folder import load, load_folder, save_folder
from .readme import model_card
from .upload import push

__all__ = ["load", "load_folder", "model_card", "push", "save_folder"]

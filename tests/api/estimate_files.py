"""Files of devices and models for ``seqplan estimate``, and its arguments for one node."""

import json
from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "costs" / "model_configs"
NODE = ("estimate", "--model", "llama-7b", "--hardware", "a800-80gb", "--seq-len", 30720)


def device(folder: Path, **values: object) -> Path:
    """A file of a device."""
    path = folder / "device.json"
    path.write_text(json.dumps(values))
    return path


def sizes(folder: Path, **values: object) -> Path:
    """A file of a model's sizes."""
    path = folder / "model.json"
    path.write_text(json.dumps(values))
    return path

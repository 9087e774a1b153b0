"""What an exported ONNX file says of itself: its input, its output and the card of its model."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from ..core import check_file, one_line
from ..core.checked import check_classes

INSTEAD = "detectors and segmenters are served from their checkpoints"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxFile:
    """Input and output of an ONNX file without their batch axis, and the metadata that the export wrote.

    >>> OnnxFile.read("lean.onnx").input_dims  # doctest: +SKIP
    (3, 224, 224)
    """

    path: Path
    input_name: str
    input_type: str
    """The element type as ONNX calls it: FLOAT, FLOAT16, UINT8, …"""
    input_dims: tuple[int, ...]
    output_name: str
    output_type: str
    output_dims: tuple[int, ...]
    card: dict[str, Any]
    preprocess: list[int] | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "OnnxFile":
        """Read a file that `lf.export.onnx` wrote."""
        import onnx

        path = check_file(path)
        try:
            model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # the protobuf parser has its own kinds of errors
            raise ValueError(f"{path} is not an ONNX file: {one_line(error)}") from error
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        if "leanformer" not in metadata:
            raise ValueError(f"{path} has no leanformer card; write it with leanformer export or lf.export.onnx")
        if len(model.graph.output) != 1:
            raise ValueError(f"{path} has {len(model.graph.output)} outputs, so it is no classifier; {INSTEAD}")
        try:
            (given,), (answer,) = model.graph.input, model.graph.output
            found = cls(
                path=path,
                **_tensor("input", given, onnx),
                **_tensor("output", answer, onnx),
                card=dict(json.loads(metadata["leanformer"])),
                preprocess=json.loads(metadata.get("leanformer_export", "{}")).get("preprocess"),
            )
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {one_line(error)}") from error
        if len(found.input_dims) != 3 or len(found.output_dims) != 1:
            raise ValueError(
                f"{path} takes {found.input_dims} and gives {found.output_dims}, so it is no classifier; {INSTEAD}"
            )
        return found

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, where the card has one for each output."""
        return check_classes(self.card.get("classes"), self.output_dims[-1])


def _tensor(side: str, value: Any, onnx: Any) -> dict[str, Any]:
    kind = value.type.tensor_type
    dims = tuple(dim.dim_value for dim in kind.shape.dim)[1:]
    if not dims:
        raise ValueError(f"its {side} has no dimensions behind the batch")
    return {
        f"{side}_name": value.name,
        f"{side}_type": onnx.TensorProto.DataType.Name(kind.elem_type),
        f"{side}_dims": dims,
    }

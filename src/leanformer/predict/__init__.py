"""Answers and embeddings for a picture, a folder or a billion images: `lf.predict(model, source)`.

The room can be called as its function: `lf.predict(…)`, with `lf.predict.Records` and the others beside it.
"""

import functools
import sys
import types
from typing import Any

from .answers import Answers, Classification, Field
from .predictions import Cluster, Predictions, predict
from .records import Records
from .running import Report, ResultBatch
from .sources import open_records

__all__ = [
    "Answers",
    "Classification",
    "Cluster",
    "Field",
    "Predictions",
    "Records",
    "Report",
    "ResultBatch",
    "open_records",
    "predict",
]


class _CallableModule(types.ModuleType):
    @functools.wraps(predict)
    def __call__(self, *arguments: Any, **options: Any) -> Predictions:
        return predict(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule

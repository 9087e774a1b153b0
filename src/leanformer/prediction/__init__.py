"""Answers and embeddings for a picture, a folder or a billion images: `lf.predict(model, source)`."""

from .answers import Answers, Classification, Field
from .predictions import Cluster, Predictions, predict
from .records import Records
from .running import Report, ResultBatch
from .settings import Settings
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
    "Settings",
    "open_records",
    "predict",
]

"""What a service counts, in the text format that Prometheus reads; every app has a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """All that a service counts, by the name of the model.

    >>> metrics = Metrics()
    >>> metrics.images.labels("lean").inc(2)
    >>> 'leanformer_images_total{model="lean"} 2.0' in metrics.text()
    True
    """

    kind = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU seconds and open files of the process
        self.requests = Counter(
            "leanformer_requests_total",
            "Requests that asked a model something, by HTTP status.",
            ("model", "status"),
            registry=self.registry,
        )
        self.images = Counter("leanformer_images_total", "Images answered.", ("model",), registry=self.registry)
        self.reloads = Counter(
            "leanformer_reloads_total",
            "Files that changed, by whether they could be opened.",
            ("model", "result"),
            registry=self.registry,
        )
        self.batches = Histogram(
            "leanformer_batch_size",
            "Images that went through the model together.",
            ("model",),
            buckets=SIZES,
            registry=self.registry,
        )
        self.seconds = Histogram(
            "leanformer_request_seconds",
            "Time from request to answer.",
            ("model",),
            buckets=SECONDS,
            registry=self.registry,
        )

    def text(self) -> str:
        """All counters as Prometheus reads them."""
        return generate_latest(self.registry).decode()

"""The HTTP service: POST /classify, GET /healthz, GET /metrics, and a page at / for people.

Requests are read and images decoded beside each other; the model sees batches. Every request ends with an answer or
with a status that says whose fault it was, within the time limit.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .batching import Batcher, Full
from .body import read_images
from .decoding import Decoding
from .images import Decoder, Refused, Seen
from .limits import Limits
from .metrics import Metrics
from .model import Answer, Served
from .page import page_html

RETRY_SECONDS = "1"
# the page may talk to its own service and to nothing else
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; "
POLICY += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
IMAGE = {"type": "string", "format": "binary"}
FORM = {"type": "object", "properties": {"files": {"type": "array", "items": IMAGE}}}
BODY = {"required": True, "content": {"image/*": {"schema": IMAGE}, "multipart/form-data": {"schema": FORM}}}
log = logging.getLogger(__name__)


class Service:
    """A served model with its decoder, its batches and its counters."""

    def __init__(self, served: Served, limits: Limits, max_batch: int, max_wait: float) -> None:
        self.served, self.limits, self.metrics = served, limits, Metrics()
        self.decode = Decoding(Decoder(served.config, limits.pixels), limits)
        self.batcher = Batcher(
            served, max_batch=max_batch, max_wait=max_wait, queue=limits.queue, on_batch=self.metrics.batches.see
        )
        self.working = 0

    async def classify(self, request: Request, top: int) -> list[dict[str, Any]]:
        """The answers for the images of a request; `Refused` for what cannot be answered."""
        if self.working >= self.limits.queue:
            raise Refused(503, f"{self.working} requests are being worked on already")
        self.working += 1
        late = Refused(408, f"the request was not sent within {self.limits.seconds} s")
        try:
            async with asyncio.timeout(self.limits.seconds):
                files = await read_images(request, self.limits)
                late = Refused(504, f"no answer within {self.limits.seconds} s")
                seen = await self.decode([data for _, data in files])
                futures = self.batcher.submit([each.pixels for each in seen])
                answers = await asyncio.gather(*map(asyncio.wrap_future, futures))
        except TimeoutError as error:
            raise late from error
        except Full as error:
            raise Refused(503, str(error)) from error
        finally:
            self.working -= 1
        self.metrics.images.add(amount=len(answers))
        return [self._told(name, each, answer, top) for (name, _), each, answer in zip(files, seen, answers)]

    def _told(self, name: str | None, seen: Seen, answer: Answer, top: int) -> dict[str, Any]:
        if not answer.probabilities.isfinite().all():
            raise Refused(500, "the model's answer is not finite numbers; its weights may be broken")
        kept = None
        if answer.kept is not None and self.served.grid is not None:
            kept = {"grid": self.served.grid, "box": seen.box, "patches": answer.kept}
        return {"file": name, "classes": answer.top(top, self.served.classes), "kept": kept}

    def close(self) -> None:
        self.batcher.close()
        self.decode.close()


class Counted:
    """Counts every request to /classify and times it, whoever answers it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/classify":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.requests.add()
            self.metrics.seconds.see(time.perf_counter() - start)
            if status >= 400:
                self.metrics.failures.add(str(status))


def create_app(
    served: Served, limits: Limits | None = None, *, max_batch: int = 16, max_wait: float = 0.005
) -> FastAPI:
    """The service of one model as an ASGI application; `max_wait` in seconds.

    >>> create_app(served, Limits(images=4), max_batch=8)  # doctest: +SKIP
    """
    service = Service(served, limits or Limits(), max_batch, max_wait)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()  # the server has answered all requests by now

    app = FastAPI(title="leanformer", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(Counted, metrics=service.metrics)  # type: ignore[arg-type]
    _add_classify(app, service)
    _add_views(app, service)
    return app


def _add_classify(app: FastAPI, service: Service) -> None:
    @app.post("/classify", openapi_extra={"requestBody": BODY})
    async def classify(request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> Response:
        """The most probable classes of one image (the body) or of several (files of a multipart form)."""
        try:
            answers = await service.classify(request, top)
            return JSONResponse({"model": service.served.name, "images": answers})
        except Refused as error:
            headers = {"Retry-After": RETRY_SECONDS} if error.status == 503 else None
            return JSONResponse({"detail": str(error)}, error.status, headers)
        except Exception:
            log.exception("a request failed")
            return JSONResponse({"detail": "the model failed on this request"}, 500)


def _add_views(app: FastAPI, service: Service) -> None:
    page = page_html()

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        """The page for people."""
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        """Whether the model can answer, and which it is."""
        served, alive = service.served, service.batcher.alive
        told = {"model": served.name, "runtime": served.runtime, "classes": len(served.classes)}
        told |= {"input_size": served.config["input_size"], "waiting": len(service.batcher)}
        return JSONResponse({"status": "ok" if alive else "the worker is gone", **told}, 200 if alive else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

"""The HTTP service: what models say of images, by one model or by several that are called by name.

POST /classify, /embed, /detect, /segment     by the first model, or by that of ?model=NAME
POST /models/NAME/classify, …/embed, …        by that model
GET  /models, /healthz, /metrics, /           which there are, whether they answer, counters, a page for people

Requests are read and images decoded beside each other; the models see batches. Every request ends with an answer or
with a status that says whose fault it was, within the time limit.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .batching import Full
from .body import read_images
from .decoding import Decoding
from .images import Refused, Seen
from .limits import Limits
from .metrics import Metrics
from .page import page_html
from .reload import Reloader, Watched
from .servable import Servable
from .shelf import NAMES, Entry, Shelf

RETRY_SECONDS = "1"
# the page may talk to its own service and to nothing else
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; "
POLICY += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
IMAGE = {"type": "string", "format": "binary"}
FORM = {"type": "object", "properties": {"files": {"type": "array", "items": IMAGE}}}
BODY = {"required": True, "content": {"image/*": {"schema": IMAGE}, "multipart/form-data": {"schema": FORM}}}
DRAINING_SECONDS = 0.05
"""Between two looks whether the last request of a model that was replaced is answered."""
log = logging.getLogger(__name__)


class Service:
    """Models with their queues, the threads that decode for all of them, and counters."""

    def __init__(self, models: Sequence[Servable], limits: Limits, max_batch: int, max_wait: float) -> None:
        self.limits, self.metrics, self.decode = limits, Metrics(), Decoding(limits)
        self.max_batch, self.max_wait, self.turn = max_batch, max_wait, threading.Lock()
        self.shelf = Shelf([self.entry(served) for served in models])
        self.working = 0

    def entry(self, served: Servable) -> Entry:
        """The model with queues of its own."""
        return Entry(
            served, self.limits, max_batch=self.max_batch, max_wait=self.max_wait, turn=self.turn,
            on_batch=self.metrics.batches.labels(served.name).observe,
        )  # fmt: skip

    async def answer(self, request: Request, model: str | None, want: str, **options: Any) -> dict[str, Any]:
        """The answers of a model to the images of a request; `Refused` for what cannot be answered."""
        if self.working >= self.limits.queue:
            raise Refused(503, f"{self.working} requests are being worked on already")
        self.working += 1
        try:
            with self.shelf.using(model) as entry:
                request.scope["leanformer"]["model"] = entry.served.name
                entry.require(want)
                files, seen, answers = await self._computed(request, entry, want)
        finally:
            self.working -= 1
        self.metrics.images.labels(entry.served.name).inc(len(answers))
        told = [
            {"file": name, **entry.served.told(each, answer, **options)}
            for name, each, answer in zip(files, seen, answers)
        ]
        return {"model": entry.served.name, "images": told}

    async def _computed(
        self, request: Request, entry: Entry, want: str
    ) -> tuple[list[str | None], list[Seen], list[Any]]:
        late = Refused(408, f"the request was not sent within {self.limits.seconds} s")
        try:
            async with asyncio.timeout(self.limits.seconds):
                files = await read_images(request, self.limits)
                late = Refused(504, f"no answer within {self.limits.seconds} s")
                seen = await self.decode(entry.decoder, [data for _, data in files])
                futures = entry.submit([each.pixels for each in seen], want)
                answers = await asyncio.gather(*map(asyncio.wrap_future, futures))
        except TimeoutError as error:
            raise late from error
        except Full as error:
            raise Refused(503, str(error)) from error
        return [name for name, _ in files], seen, answers

    def exchange(self, served: Servable, loop: asyncio.AbstractEventLoop) -> None:
        """Put a model in the place of the one of its name, and wait until that one's requests are answered.

        Args:
            served: The new model, ready to answer.
            loop: The event loop of the service; the caller is another thread.
        """
        entry = self.entry(served)

        async def put() -> Entry:
            return self.shelf.put(entry)

        old = asyncio.run_coroutine_threadsafe(put(), loop).result()
        while old.users:
            time.sleep(DRAINING_SECONDS)
        old.close()

    def close(self) -> None:
        """Answer what waits, and stop."""
        for entry in self.shelf:
            entry.close()
        self.decode.close()


class Counted:
    """Counts every request that asks a model something and times it, whoever answers it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rpartition("/")[2] not in NAMES:
            return await self.app(scope, receive, send)
        start, status, asked = time.perf_counter(), 500, {"model": ""}  # the model's name, once it is known
        scope["leanformer"] = asked

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.requests.labels(asked["model"], str(status)).inc()
            self.metrics.seconds.labels(asked["model"]).observe(time.perf_counter() - start)


def create_app(
    served: Servable | Sequence[Servable],
    limits: Limits | None = None,
    *,
    max_batch: int = 16,
    max_wait: float = 0.005,
    watched: Sequence[Watched] = (),
    look_every: float = 2.0,
) -> FastAPI:
    """The service of one model or of several as an ASGI application.

    Args:
        served: The models; the first answers where a request names none.
        limits: What requests may cost.
        max_batch: Images that go through a model together.
        max_wait: Seconds that an image waits for others.
        watched: Models that are opened anew when their files change.
        look_every: Seconds between two looks at these files.

    >>> create_app(served, Limits(images=4), max_batch=8)  # doctest: +SKIP
    """
    models = list(served) if isinstance(served, Sequence) else [served]
    service = Service(models, limits or Limits(), max_batch, max_wait)

    def reloaded(name: str, fine: bool) -> None:
        service.metrics.reloads.labels(name, "ok" if fine else "failed").inc()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        reloader = Reloader(watched, lambda new: service.exchange(new, loop), look_every, reloaded)
        yield
        await asyncio.to_thread(reloader.close)  # it may be waiting for this loop
        service.close()  # the server has answered all requests by now

    app = FastAPI(title="leanformer", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(Counted, metrics=service.metrics)  # type: ignore[arg-type]
    _add_answers(app, service)
    _add_views(app, service)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    async def told(request: Request, model: str | None, want: str, **options: Any) -> Response:
        try:
            return JSONResponse(await service.answer(request, model, want, **options))
        except Refused as error:
            headers = {"Retry-After": RETRY_SECONDS} if error.status == 503 else None
            return JSONResponse({"detail": str(error)}, error.status, headers)
        except Exception:
            log.exception("a request failed")
            return JSONResponse({"detail": "the model failed on this request"}, 500)

    @app.post("/classify", openapi_extra={"requestBody": BODY})
    @app.post("/models/{model}/classify", openapi_extra={"requestBody": BODY})
    async def classify(
        request: Request,
        model: str | None = None,
        top: Annotated[int, Query(ge=1, le=1000)] = 5,
        kept: bool = False,
    ) -> Response:
        """The most probable classes of one image (the body) or of several (files of a multipart form).

        Kept patches are told where that costs nothing; with `kept` an optimised model computes again to tell them.
        """
        return await told(request, model, "kept" if kept else "classes", top=top)

    @app.post("/embed", openapi_extra={"requestBody": BODY})
    @app.post("/models/{model}/embed", openapi_extra={"requestBody": BODY})
    async def embed(request: Request, model: str | None = None) -> Response:
        """The features before the head, one vector for each image."""
        return await told(request, model, "embedding")

    @app.post("/detect", openapi_extra={"requestBody": BODY})
    @app.post("/models/{model}/detect", openapi_extra={"requestBody": BODY})
    async def detect(
        request: Request, model: str | None = None, score: Annotated[float, Query(ge=0, le=1)] = 0.0
    ) -> Response:
        """The objects in each image: box (left, top, right, bottom in its pixels), class, score and, where the model
        gives them, mask. `score` leaves out what is below it; what the detector itself leaves out stays out.
        """
        return await told(request, model, "objects", score=score)

    @app.post("/segment", openapi_extra={"requestBody": BODY})
    @app.post("/models/{model}/segment", openapi_extra={"requestBody": BODY})
    async def segment(request: Request, model: str | None = None) -> Response:
        """A class for each pixel, as a PNG of the image's size in base64, and the share of each class that occurs."""
        return await told(request, model, "regions")


def _about(entry: Entry) -> dict[str, Any]:
    served = entry.served
    told = {"model": served.name, "runtime": served.runtime, "classes": len(served.classes)}
    told |= {"input_size": served.config["input_size"], "waiting": len(entry)}
    return {**told, "task": served.task, "answers": entry.verbs, "embeddings": "embed" in entry.verbs}


def _add_views(app: FastAPI, service: Service) -> None:
    page = page_html()

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        """The page for people."""
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @app.get("/models")
    async def models() -> JSONResponse:
        """The models by name, and which of them answers where a request names none."""
        return JSONResponse({"default": service.shelf.default, "models": [_about(entry) for entry in service.shelf]})

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        """Whether all models can answer, and which is asked where a request names none."""
        alive = all(entry.alive for entry in service.shelf)
        told = {
            "status": "ok" if alive else "the worker is gone",
            **_about(service.shelf.entries[service.shelf.default]),
        }
        return JSONResponse({**told, "models": list(service.shelf.entries)}, 200 if alive else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=service.metrics.kind)

"""From a request to the bytes of its images, within the limits.

A body is one image, or a multipart form whose files are images.
"""

from collections.abc import AsyncGenerator

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from .images import Refused
from .limits import Limits

DRAINED = 4
"""So many times the limit is read and thrown away: a client still sending would see a broken line, not the answer."""


async def read_images(request: Request, limits: Limits) -> list[tuple[str | None, bytes]]:
    """File names, where given, and contents of the images of a request."""
    try:
        body = await _read(request, limits.body)
    except ClientDisconnect as error:
        raise Refused(400, "the client went away before it had sent everything") from error
    found: list[tuple[str | None, bytes]] = [(None, body)] if body else []
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        found = await _files(request, body, limits.images)
    if not found:
        raise Refused(422, "no image in the request: send one as the body, or several as files of a multipart form")
    return found


async def _read(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size, stated = 0, request.headers.get("content-length", "")
    too_large = stated.isdigit() and int(stated) > limit
    async for part in request.stream():
        size += len(part)
        too_large = too_large or size > limit
        if not too_large:
            parts.append(part)
        elif size > DRAINED * limit:
            break
        else:
            parts.clear()
    if too_large:
        raise Refused(413, f"the request is larger than {limit} bytes")
    return b"".join(parts)


async def _files(request: Request, body: bytes, limit: int) -> list[tuple[str | None, bytes]]:
    async def once() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        form = await MultiPartParser(request.headers, once(), max_files=limit, max_fields=limit).parse()
    except MultiPartException as error:
        many = error.message.startswith("Too many")
        raise Refused(413 if many else 400, f"the multipart form was not taken: {error.message}") from error
    except (KeyError, ValueError, UnicodeError) as error:  # a boundary or a charset that is none
        raise Refused(400, "the multipart form is damaged") from error
    try:
        return [
            (_readable(item.filename), await item.read())
            for _, item in form.multi_items()
            if isinstance(item, UploadFile)
        ]
    finally:
        await form.close()


def _readable(name: str | None) -> str | None:
    """A file's name as it can be told: bytes that are no text become question marks."""
    return None if name is None else name.encode("utf-8", "replace").decode("utf-8")

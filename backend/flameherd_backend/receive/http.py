"""OTLP profiles over HTTP: `POST /v1development/profiles`, protobuf and JSON, plain or gzip.

The body is read up to the limit and no further, whatever its headers say. Responses follow the
specification ("OTLP/HTTP Response"): the same encoding as the request's, 429 or 503 with
`Retry-After` for what should come again, a `Status` in the body of errors.
"""

import asyncio
import json
import math
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from flameherd_backend.access import Access
from flameherd_backend.decode.pool import Request
from flameherd_backend.errors import Busy, Refused, TooLarge, Unauthenticated, Unsupported
from flameherd_backend.receive.grpc import response as protobuf_response
from flameherd_backend.receive.intake import Admission, Intake, Outcome
from flameherd_backend.receive.status import status, status_json

PATH: Final = "/v1development/profiles"
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_BODY_S: Final = 30.0
_MAX_DIGITS: Final = 19
_INVALID_ARGUMENT, _UNAVAILABLE = 3, 14
_STATUS: Final = {TooLarge: 413, Unauthenticated: 401, Unsupported: 415, Refused: 400}


def application(intake: Intake, access: Access) -> Starlette:
    """The ASGI application."""

    async def export(request: HttpRequest) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = kind == _JSON
        try:
            identity = access.identify(request.headers.get("authorization"))
            if kind not in (_PROTOBUF, _JSON):
                raise Unsupported(f"content type {kind[:100]!r}: send {_PROTOBUF} or {_JSON}")
            encoding = request.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("gzip", "identity", ""):
                raise Unsupported(f"content encoding {encoding[:100]!r}: send gzip or none")
            with intake.admit(0, intake.limits.max_message_bytes) as admission:
                async with asyncio.timeout(_BODY_S):
                    body = await _body(request, admission, intake.limits.max_message_bytes)
                outcome = await intake.take(
                    Request(body, encoding == "gzip", is_json, identity.may_send)
                )
        except Refused as error:
            code = next(code for kind_, code in _STATUS.items() if isinstance(error, kind_))
            headers = {"WWW-Authenticate": "Bearer"} if code == 401 else {}
            return _error(is_json, code, _INVALID_ARGUMENT, str(error), headers)
        except Busy as error:
            after = {"Retry-After": str(math.ceil(error.retry_after_s))}
            return _error(is_json, 429 if error.throttled else 503, _UNAVAILABLE, str(error), after)
        except TimeoutError:
            text = f"the body did not come within {_BODY_S:.0f} s"
            return _error(is_json, 408, _UNAVAILABLE, text, {"Connection": "close"})
        except ClientDisconnect:
            return Response(status_code=400)
        return _accepted(is_json, outcome)

    return Starlette(routes=[Route(PATH, export, methods=["POST"])])


async def _body(request: HttpRequest, admission: Admission, limit: int) -> bytes:
    """The body. When it is refused, as much again is read and thrown away first: a sender that is still writing
    would see a broken connection instead of the answer.
    """
    stream = request.stream()
    size = 0
    parts: list[bytes] = []
    try:
        length = request.headers.get("content-length", "")
        if length.isdigit() and len(length) < _MAX_DIGITS:
            admission.grow_to(int(length))
        async for part in stream:
            size += len(part)
            admission.grow_to(size)
            parts.append(part)
    except (TooLarge, Busy):
        parts.clear()
        async for part in stream:
            size += len(part)
            if size > 2 * limit:
                break
        raise
    return b"".join(parts)


def _accepted(is_json: bool, outcome: Outcome) -> Response:
    if not is_json:
        return Response(protobuf_response(outcome.rejected, outcome.reason), media_type=_PROTOBUF)
    answer = {}
    if outcome.rejected or outcome.reason:
        answer["partialSuccess"] = {
            "rejectedProfiles": str(outcome.rejected),
            "errorMessage": outcome.reason,
        }
    return Response(json.dumps(answer), media_type=_JSON)


def _error(
    is_json: bool, http_status: int, code: int, message: str, headers: dict[str, str]
) -> Response:
    content = status_json(code, message) if is_json else status(code, message)
    return Response(content, http_status, headers, _JSON if is_json else _PROTOBUF)

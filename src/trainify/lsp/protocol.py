"""The protocol as pygls speaks it, but that each request gets an answer."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import cattrs
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol

log = logging.getLogger(__name__)


class Protocol(LanguageServerProtocol):
    """Answers a request whose parameters are not those of its method with InvalidParams.

    pygls answers nothing, and the client waits.  What a handler refuses, by raising the error to
    answer with, is a line of the log, and no bug with a traceback.
    """

    def structure_message(self, data: dict[str, Any]) -> Any:
        """The message that JSON stands for; None where it has been answered."""
        request = self._request_type(data)
        if request is None:
            return super().structure_message(data)
        try:
            return self._converter.structure(data, request)
        except Exception as error:
            wrong = "; ".join(cattrs.transform_error(error, path="params"))
            wrong = wrong.replace("params.params", "params")
            log.warning("%s: %s", data["method"], wrong)
            code = types.ErrorCodes.InvalidParams.value
            self._send_response(data["id"], error=types.ResponseError(code, wrong))
            return None

    def _send_handler_result(self, future: Future[Any], *, msg_id: int | str) -> None:
        error = None if future.cancelled() else future.exception()
        if not isinstance(error, JsonRpcException):
            super()._send_handler_result(future, msg_id=msg_id)
            return
        self._request_futures.pop(msg_id, None)
        log.warning("request %s: %s", msg_id, error.message)
        self._send_response(msg_id, error=error.to_response_error())

    def _request_type(self, data: dict[str, Any]) -> type[Any] | None:
        """The type of a request that is part of the protocol."""
        if "jsonrpc" in data and isinstance(data.get("id"), (int, str)):
            method = data.get("method")
            return self.get_message_type(method) if isinstance(method, str) else None
        return None

    def handle_message(self, message: Any) -> None:
        if message is not None:
            super().handle_message(message)

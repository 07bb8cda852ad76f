"""A server that redirects a realtime connection gets no credentials to another address."""

from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from standfast.realtime import ConnectFailed, OpenAIRealtimeWebSocketModel

CREDENTIALS: list[dict[str, Any]] = [
    {"api_key": "sk-secret-key"},
    {"headers": {"api-key": "secret", "X-Auth": "other"}},
]


def get_port(server: Any) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("credentials", CREDENTIALS, ids=["api_key", "headers"])
async def test_a_redirect_is_an_error_and_its_address_is_not_contacted(
    status: int, credentials: dict[str, Any]
) -> None:
    contacts: list[Any] = []

    async def ignore(socket: Any) -> None:
        await socket.wait_closed()

    def record(connection: Any, request: Any) -> None:
        contacts.append(dict(request.headers))

    async with serve(ignore, "127.0.0.1", 0, process_request=record) as elsewhere:
        location = f"ws://127.0.0.1:{get_port(elsewhere)}/steal"

        def redirect(connection: Any, request: Any) -> Response:
            return Response(status, HTTPStatus(status).phrase, Headers({"Location": location}))

        async with serve(ignore, "127.0.0.1", 0, process_request=redirect) as server:
            model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 1.0})
            with pytest.raises(ConnectFailed, match="redirects are not followed") as failed:
                await model.connect({"url": f"ws://127.0.0.1:{get_port(server)}", **credentials})
        assert failed.value.status == status
        assert contacts == []

"""A server that does not listen to its own commits: whatever is due, it finds by searching the tables."""

import asyncio
import logging
import socket
import sys
from datetime import timedelta

import uvicorn

from server_stub.app import Server
from server_stub.config import ServerSettings

SETTINGS = ServerSettings(rescan_interval=timedelta(milliseconds=50), look_ahead=timedelta(milliseconds=100))


async def main(port: int) -> None:
    """Serve ./xdb.db until a stop signal."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        async with await Server.open(SETTINGS, notify=False) as server:
            print(f"deaf server on http://127.0.0.1:{port}")
            config = uvicorn.Config(server.api, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
            await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(main(int(sys.argv[sys.argv.index("--port") + 1])))

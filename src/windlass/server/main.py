"""Running a server: from settings to a process that answers, and to a clean end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from windlass.core import garbage
from windlass.core.errors import InvalidInput
from windlass.server import homefolder
from windlass.server.compose import OpenEngines, Parts, compose
from windlass.server.settings import DEFAULT_PORT, Role, Settings

log = logging.getLogger(__name__)
_SHUTDOWN_S = 3


def serve(
    settings: Settings, *, announce: Callable[[str], None] = lambda _url: None, open_engines: OpenEngines | None = None
) -> int:
    """Run until SIGINT or SIGTERM. `announce` is called with the URL once requests are answered."""
    homefolder.prepare(settings.home)
    _configure_logging()
    if settings.role is Role.CONTROLLER:
        parts = compose(settings, open_engines=open_engines)
        return _run_controller_only(parts, announce)
    with homefolder.owned(settings.home):
        parts = compose(settings, open_engines=open_engines)
        with _listening(settings) as sock, _controller_running(parts), _delivering(parts):
            url = _url(settings.host, sock)

            def ready() -> None:
                homefolder.write_note(settings.home, url)
                announce(url)

            _Server(parts, settings, ready).run([sock])
        homefolder.remove_note(settings.home)
        parts.db.close()
    return 0


class _Server(uvicorn.Server):
    """Uvicorn that tells when it is ready, and ends open streams when it is told to stop."""

    def __init__(self, parts: Parts, settings: Settings, on_ready: Callable[[], None]) -> None:
        assert parts.app is not None
        super().__init__(
            uvicorn.Config(
                parts.app,
                host=settings.host,
                log_config=None,
                access_log=False,
                http="httptools",
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=_SHUTDOWN_S,
                timeout_keep_alive=30,
            )
        )
        self._services = parts.services
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        garbage.set_aside()
        self._on_ready()

    def handle_exit(self, sig: int, frame: object) -> None:
        self._services.closing = True
        super().handle_exit(sig, frame)  # type: ignore[arg-type]

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # Uvicorn raises the signal again after a clean shutdown; ours ends with 0 instead.
        with contextlib.suppress(KeyboardInterrupt):
            previous = signal.signal(signal.SIGTERM, lambda *_: None)
            super().run(sockets)
            signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _controller_running(parts: Parts) -> Iterator[None]:
    controller = parts.controller
    if controller is None:
        yield
        return
    controller.activate()  # nodes are known before the first submission; a standby just waits
    thread = threading.Thread(target=controller.run_forever, name="controller", daemon=True)
    thread.start()
    with _clearing_away(parts):
        try:
            yield
        finally:
            controller.stop()
            thread.join(timeout=10)


@contextlib.contextmanager
def _clearing_away(parts: Parts) -> Iterator[None]:
    assert parts.retention is not None
    assert parts.compactor is not None
    parts.retention.start()
    parts.compactor.start()
    try:
        yield
    finally:
        parts.compactor.stop()
        parts.retention.stop()


@contextlib.contextmanager
def _delivering(parts: Parts) -> Iterator[None]:
    parts.deliverer.start()
    try:
        yield
    finally:
        parts.deliverer.stop()


def _run_controller_only(parts: Parts, announce: Callable[[str], None]) -> int:
    assert parts.controller is not None
    controller = parts.controller
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: controller.stop())
    announce("controller")
    with _clearing_away(parts), _delivering(parts):
        controller.run_forever()
    parts.db.close()
    return 0


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By its number of protocol asyncio knows that answers in two parts are not to wait for each other (TCP_NODELAY).
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.closing(sock):
        _bind(sock, settings)
        sock.set_inheritable(False)
        yield sock


def _bind(sock: socket.socket, settings: Settings) -> None:
    """To the port that was asked for. Without one to the one that clients of this folder know, which runs that go on
    log to; one that somebody else has by now is not waited for."""
    if settings.port is not None:
        try:
            return sock.bind((settings.host, settings.port))
        except OSError as error:
            raise InvalidInput(
                f"port {settings.port} on {settings.host} cannot be used: {error.strerror}",
                hint="leave out --port to get a free one",
            ) from error
    for port in (homefolder.last_port(settings.home), DEFAULT_PORT):
        with contextlib.suppress(OSError):
            if port is not None:
                return sock.bind((settings.host, port))
    return sock.bind((settings.host, 0))


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _configure_logging() -> None:
    level = os.environ.get("WINDLASS_LOG", "INFO").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

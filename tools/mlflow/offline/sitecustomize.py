"""Names that MLflow's suites use, where there is no network: both servers look up where a webhook would go."""

import socket

_KNOWN = {"example.com": "93.184.215.14"}
_look_up = socket.getaddrinfo


def _answer(host, *others, **named):  # type: ignore[no-untyped-def]
    name = host.decode() if isinstance(host, bytes) else host
    return _look_up(_KNOWN.get(name, host), *others, **named)


socket.getaddrinfo = _answer

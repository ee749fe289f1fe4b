"""Clouds tell a machine shortly before they take it away. This asks them, and has the node stop in time: notice.json
for the server, stop.json and SIGTERM for the supervisor. Off unless WINDLASS_SPOT_NOTICES names the cloud.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Callable, Mapping, NamedTuple

from . import kernel, layout, outcome
from .files import read_json, write_json
from .http1 import BadAnswer, Connection, parse_address

CLOUD = "WINDLASS_SPOT_NOTICES"
ENDPOINT = "WINDLASS_SPOT_ENDPOINT"  # instead of the cloud's own address
EVERY = "WINDLASS_SPOT_EVERY_S"
_EVERY_S = 5.0
_PATIENCE_S = 5.0
_MARGIN_S = 2.0  # what is left after the grace period to send the last lines
_METADATA = "http://169.254.169.254"
_GOOGLE = "http://metadata.google.internal"
UNANSWERED = (OSError, BadAnswer, ValueError, KeyError, TypeError)


class Warned(NamedTuple):
    message: str
    deadline: float | None  # when the machine will be gone
    is_certain: bool  # False: the cloud only thinks it likely


def is_wanted(environ: Mapping[str, str]) -> bool:
    return bool(environ.get(CLOUD))


def watch(node_dir: str, environ: Mapping[str, str]) -> None:
    """Until the node has ended. A cloud that does not answer is asked again, and what cannot be passed on for a full
    disk is passed on when there is room."""
    while not outcome.exists(node_dir):
        try:
            found = ask(environ)
            if found is not None and act_on(found, node_dir, now=time.time()):
                return
        except UNANSWERED:
            pass
        time.sleep(every_s(environ))


def ask(environ: Mapping[str, str]) -> Warned | None:
    """What the cloud says now; None: that all is well. Raises one of UNANSWERED if it says nothing."""
    cloud = environ[CLOUD]
    if cloud not in _CLOUDS:
        raise SystemExit("%s is '%s'; known: %s" % (CLOUD, cloud, ", ".join(sorted(_CLOUDS))))
    default, question = _CLOUDS[cloud]
    return question(environ.get(ENDPOINT, default))


def every_s(environ: Mapping[str, str]) -> float:
    return float(environ.get(EVERY, _EVERY_S))


def act_on(found: Warned, node_dir: str, *, now: float) -> bool:
    """Tell the supervisor, if it is certain, and the server. Whether there is nothing left to wait for. To be repeated
    if it raises."""
    if found.is_certain:
        _stop(found, node_dir, now)  # first: the ranks have little time, and the server only needs to know
    notice = os.path.join(node_dir, layout.NOTICE)
    if not os.path.exists(notice) or found.is_certain:
        told = {"message": found.message, "deadline": found.deadline, "certain": found.is_certain}
        write_json(notice, told)
    return found.is_certain


def _stop(found: Warned, node_dir: str, now: float) -> None:
    stop = os.path.join(node_dir, layout.STOP)
    try:
        if not os.path.exists(stop):
            grace_s = _grace_s(node_dir, found, now)
            write_json(stop, {"kind": "preempted", "reason": found.message, "grace_s": grace_s})
    finally:
        # Also without the wish, which a full disk does not let through: the ranks then have the grace of their plan.
        status = read_json(os.path.join(node_dir, layout.STATUS))
        if status is not None and kernel.is_alive(status["pid"], status["pid_start"]):
            os.kill(status["pid"], signal.SIGTERM)


def _grace_s(node_dir: str, found: Warned, now: float) -> float:
    plan = read_json(os.path.join(node_dir, layout.PLAN))
    wanted = float(plan["grace_s"]) if plan else 0.0
    if found.deadline is None:
        return wanted
    return max(0.0, min(wanted, found.deadline - now - _MARGIN_S))


def _aws(base: str) -> Warned | None:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(base, "/latest/api/token", ttl, method="PUT")
    if token is None:
        return None
    headers = {"X-aws-ec2-metadata-token": token}
    text = _ask(base, "/latest/meta-data/spot/instance-action", headers)
    if text is not None:
        action = json.loads(text)
        return Warned("AWS will %s this spot instance" % action["action"], _time(action["time"]), True)
    text = _ask(base, "/latest/meta-data/events/recommendations/rebalance", headers)
    if text is not None:
        return Warned("AWS expects to take this spot instance soon", None, False)
    return None


def _gcp(base: str) -> Warned | None:
    """https://cloud.google.com/compute/docs/instances/create-use-spot: 30 s from the notice on."""
    text = _ask(base, "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    if text is None or text.strip().upper() != "TRUE":
        return None
    return Warned("Google takes this spot machine", time.time() + 30.0, True)


def _azure(base: str) -> Warned | None:
    """https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events: at least 30 s before."""
    from email.utils import parsedate_to_datetime  # long to load; so is `calendar`

    text = _ask(base, "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    for event in json.loads(text)["Events"] if text else ():
        if event["EventType"] in ("Preempt", "Terminate"):
            begins = event.get("NotBefore")
            deadline = parsedate_to_datetime(begins).timestamp() if begins else time.time() + 30.0
            return Warned("Azure takes this machine (%s)" % event["EventType"], deadline, True)
    return None


_CLOUDS: dict[str, tuple[str, Callable[[str], Warned | None]]] = {
    "aws": (_METADATA, _aws),
    "gcp": (_GOOGLE, _gcp),
    "azure": (_METADATA, _azure),
}


def _ask(base: str, path: str, headers: Mapping[str, str], *, method: str = "GET") -> str | None:
    """The answer's text; None if there is no such thing, which is how clouds say that all is well."""
    secure, host, port, _ = parse_address(base)
    connection = Connection(host, port, secure=secure, timeout_s=_PATIENCE_S)
    try:
        connection.request(method, path, None, headers)
        response = connection.getresponse()
        text = response.read().decode()
        return text if response.status == 200 else None
    finally:
        connection.close()


def _time(text: str) -> float:
    import calendar

    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))

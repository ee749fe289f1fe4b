"""The relay: stands between a node that shares no folder with the server and the server's API.

It fetches the plan and the code, starts the supervisor in a folder of this node, sends what that folder comes to hold,
and passes wishes to stop on. A server that is away changes nothing for the ranks: the folder keeps what is to be sent.
Ranks never outlive it. One thread; signals are acted on in their handlers, whatever it waits for.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from typing import Any, Callable, Mapping, NamedTuple, Sequence, TypeVar

from . import layout, outcome, spot
from .command import CannotStart
from .completion import Folders, complete_plan, folders_in
from .courier import Courier, Refused, Unreachable
from .fetch import fetch_code
from .files import read_json, write_json
from .household import Bell, Household
from .nvml import Nvml
from .outbox import Outbox
from .pace import BACKOFF_S, Pace
from .supervisor import free_port, supervise

OVER = 143  # exit codes: the attempt was over before this node was
REFUSED = 76  # another process is this node, or the token is not good
_TOKEN_TRIES = 10

T = TypeVar("T")


class Post(NamedTuple):
    """Which node this is, and where it finds its server."""

    server: str
    attempt_id: str
    node_rank: int
    token: str
    address: str | None
    home: str
    scratch: str | None  # a folder made for this process alone, to be removed at its end

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> Post:
        needed = ("WINDLASS_SERVER", "WINDLASS_NODE_ATTEMPT", "WINDLASS_NODE_RANK", "WINDLASS_NODE_TOKEN")
        missing = [name for name in needed if not environ.get(name)]
        if missing:
            raise SystemExit("%s must be set in the environment of a node's agent" % ", ".join(missing))
        home, scratch = environ.get("WINDLASS_NODE_HOME"), environ.get("WINDLASS_NODE_SCRATCH")
        if not home and not scratch:
            scratch = tempfile.mkdtemp(prefix="windlass-")
        return Post(
            server=environ["WINDLASS_SERVER"],
            attempt_id=environ["WINDLASS_NODE_ATTEMPT"],
            node_rank=int(environ["WINDLASS_NODE_RANK"]),
            token=environ["WINDLASS_NODE_TOKEN"],
            address=environ.get("WINDLASS_NODE_ADDR"),
            home=os.path.abspath(home or str(scratch)),
            scratch=scratch,
        )


class Over(Exception):
    """The attempt goes on without this node, or not at all."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def relay(post: Post, parents: Sequence[int] = ()) -> int:
    """Run the node to its end; what this process is to exit with."""
    household = Household(parents)
    try:
        return Relay(post, household).run()
    except Over as over:
        _say(str(over))
        return over.code
    except Refused as refusal:
        _say("the server refuses this node: %s" % refusal)
        return REFUSED
    finally:
        household.end()
        if post.scratch is not None:
            shutil.rmtree(post.scratch, ignore_errors=True)


class Relay:
    def __init__(self, post: Post, household: Household) -> None:
        self._post = post
        self._household = household
        self._courier = Courier(post.server, post.attempt_id, post.node_rank, post.token)
        self._incarnation = uuid.uuid4().hex
        self._wish: Mapping[str, Any] | None = None

    def run(self) -> int:
        welcome = self._say_hello()
        folders = folders_in(self._post.home, welcome["plan"])
        os.makedirs(folders.node, exist_ok=True)
        with Bell(folders.home) as bell:
            problem = self._start(welcome, folders, bell)
            if problem is not None:
                outcome.write(folders.node, problem)
            ended = self._report(folders, bell)
        shutil.rmtree(folders.node, ignore_errors=True)  # all of it is on the server
        return exit_code(ended)

    # Beginning --------------------------------------------------------------------------------------------------

    def _say_hello(self) -> dict[str, Any]:
        port = free_port("")  # on all addresses: ranks of other nodes will come to it

        def say() -> dict[str, Any] | None:
            hello = {
                "incarnation": self._incarnation,
                "address": self._post.address or self._courier.own_address(),
                "port": port,
                "host": os.uname().nodename[:200],
            }
            answer = self._courier.post("hello", hello)
            return answer.json() if answer.status == 200 else None

        while True:
            welcome = self._persist(say)
            if welcome is not None:
                return welcome
            if self._household.is_told_to_stop:
                raise Over(OVER, "told to stop before the other nodes were there")

    def _start(self, welcome: Mapping[str, Any], folders: Folders, bell: Bell) -> dict[str, Any] | None:
        """Start the supervisor; or the outcome of a node that cannot."""
        plan = complete_plan(welcome, folders, environ=os.environ, devices=_devices(), notify_socket=bell.path)
        problem = self._lay_in(welcome["plan"].get("code_digest"), plan, folders)
        if problem is not None:
            return problem
        if self._household.is_told_to_stop:
            return outcome.never_started("preempted", "its node was told to stop from outside", time.time())
        write_json(os.path.join(folders.node, layout.PLAN), plan, mode=0o600)
        self._pass_on(welcome.get("stop"), folders)
        self._courier.close()  # not to be shared with a fork
        secrets = {str(name): str(value) for name, value in welcome["secrets"].items()}
        self._household.start(lambda: supervise(folders.node, secrets, None))
        if spot.is_wanted(os.environ):
            self._household.start_aside(lambda: spot.watch(folders.node, os.environ))
        return None

    def _lay_in(self, digest: str | None, plan: Mapping[str, Any], folders: Folders) -> dict[str, Any] | None:
        try:
            if digest:
                os.makedirs(folders.blobs, exist_ok=True)
                self._persist(lambda: fetch_code(self._courier, digest, folders.blobs))
            elif plan["workdir"].startswith(folders.run):
                os.makedirs(plan["workdir"], exist_ok=True)
        except CannotStart as problem:
            return outcome.never_started("launch_failed", problem.message, time.time(), problem.code)
        except Refused as refusal:
            return outcome.never_started("launch_failed", "no code snapshot: %s" % refusal, time.time())
        return None

    def _persist(self, act: Callable[[], T]) -> T:
        """Until there is an answer. Raises Over if this node is not wanted, Refused for other refusals."""
        backoff_s, most_s = BACKOFF_S
        rejections = 0
        while True:
            try:
                return act()
            except Refused as refusal:
                rejections += refusal.status == 401
                if refusal.status == 410:
                    raise Over(OVER, str(refusal)) from None
                if refusal.status == 409 or rejections >= _TOKEN_TRIES:
                    raise Over(REFUSED, str(refusal)) from None
                if refusal.status != 401:  # a server that is only being set up may not know its key yet
                    raise
            except (Unreachable, OSError) as error:  # among them a name that does not resolve yet, a full disk
                _say(str(error))
            if self._household.is_told_to_stop:
                raise Over(OVER, "told to stop before it began")
            self._household.wait(backoff_s)
            backoff_s = min(most_s, backoff_s * 2)

    # Reporting --------------------------------------------------------------------------------------------------

    def _report(self, folders: Folders, bell: Bell) -> Mapping[str, Any]:
        """Until the server has the outcome. Raises Over when it says that the attempt is over."""
        outbox = Outbox(folders.node, self._incarnation)
        pace = Pace(time.monotonic())
        while True:
            try:
                if self._household.supervisor_has_ended():
                    self._bury(folders)
                now = time.monotonic()
                if pace.is_due(now, has_news=outbox.has_news(), is_urgent=outbox.is_urgent()):
                    pace.sent(now)
                    draft = outbox.draft()
                    receipt = self._courier.post("report", draft.body).json()
                    outbox.settle(draft, receipt["positions"])
                    pace.heard(float(receipt["pause_s"]), float(receipt["beat_s"]), has_more=draft.has_more)
                    self._pass_on(receipt["stop"], folders)
                    if receipt["ended"]:
                        return read_json(os.path.join(folders.node, layout.OUTCOME)) or {"reason": "lost"}
            except Refused as refusal:
                if refusal.status in (409, 410):
                    raise Over(OVER, str(refusal)) from None
                _say("not reported: %s" % refusal)
                pace.failed()
            except (Unreachable, OSError, ValueError, KeyError) as error:
                _say("not reported: %s" % error)
                pace.failed()
            self._household.wait(pace.wait_s(time.monotonic()), bell)

    def _pass_on(self, wish: Mapping[str, Any] | None, folders: Folders) -> None:
        """On disk before the supervisor is told, so that one that is only starting sees it too."""
        if not wish or wish == self._wish:
            return
        write_json(os.path.join(folders.node, layout.STOP), dict(wish))
        self._wish = wish
        self._household.signal_supervisor(signal.SIGTERM)

    def _bury(self, folders: Folders) -> None:
        """The supervisor is gone. If it left no outcome, leave nothing of it, and say what became of it."""
        if outcome.exists(folders.node):
            return
        self._household.end()
        wish = read_json(os.path.join(folders.node, layout.STOP))
        if wish is None and self._household.is_told_to_stop:
            wish = {"kind": "preempted", "reason": "its node was told to stop from outside"}
        status = read_json(os.path.join(folders.node, layout.STATUS))
        if wish is not None and status is None:  # the signal met it before it could listen
            outcome.write(folders.node, outcome.never_started(str(wish["kind"]), str(wish["reason"]), time.time()))
            return
        message = "its supervisor died without leaving an outcome"
        started_at = status["started_at"] if status else None
        ended = outcome.summary(reason="lost", message=message, started_at=started_at, ended_at=time.time())
        outcome.write(folders.node, ended)


def exit_code(ended: Mapping[str, Any]) -> int:
    """What a shell would show: 0, the rank's code, or 128 and its signal; never 0 for anything but completion."""
    if ended["reason"] == "completed":
        return 0
    if ended.get("signal"):
        return min(255, 128 + int(ended["signal"]))
    return min(255, max(1, int(ended.get("exit_code") or 1)))


def _devices() -> list[dict[str, Any]]:
    nvml = Nvml.open()
    if nvml is None:
        return []
    try:
        return nvml.devices()
    finally:
        nvml.close()


def _say(text: str) -> None:
    """To the container's own log: the server's is what may be out of reach."""
    sys.stderr.write("windlass: %s\n" % text)
    sys.stderr.flush()

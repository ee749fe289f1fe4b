"""The relay: stands between a node that shares no folder with the server and the server's API.

It fetches the plan and the code, starts the supervisor in a folder of this node, sends what that folder comes to hold,
and passes wishes to stop on. A server that is away changes nothing for the ranks: the folder keeps what is to be sent.
Ranks never outlive it. One thread; signals are acted on in their handlers, whatever it waits for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence, TypeVar

from . import layout, outcome, spot
from .command import CannotStart
from .courier import Answer, Courier, Refused, Unreachable
from .files import read_json, write_json
from .household import Bell, Household
from .nvml import Nvml
from .outbox import Outbox
from .pace import BACKOFF_S, Pace
from .ports import free_port

if TYPE_CHECKING:
    from .completion import Folders

OVER = 143  # exit codes: the attempt was over before this node was
REFUSED = 76  # another process is this node, or the token is not good
# How often an answer that will not change is heard before it is believed. Servers that are away are waited for.
_TRIES = 5
_TOKEN_TRIES = 10  # a server that is only being set up may not know its key yet
_REPORT_TRIES = 10  # half a minute: ranks are running
_LONGEST_HELLO_PAUSE_S = 60.0
_LONGEST_MESSAGE = 4_000

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
            import tempfile  # whoever brought the agent here has made one, as a rule

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
            _remove(post.scratch)


class Relay:
    def __init__(self, post: Post, household: Household) -> None:
        self._post = post
        self._household = household
        self._courier = Courier(post.server, post.attempt_id, post.node_rank, post.token)
        self._incarnation = os.urandom(16).hex()
        self._wish: Mapping[str, Any] | None = None
        self._was_told: Mapping[str, Any] | None = None  # the wish that the supervisor was signalled for

    def run(self) -> int:
        welcome = self._say_hello()
        from .completion import folders_in

        folders = folders_in(self._post.home, welcome["plan"])
        os.makedirs(folders.node, exist_ok=True)
        with Bell(folders.home) as bell:
            problem = self._start(welcome, folders, bell)
            if problem is not None:
                outcome.write(folders.node, problem)
            ended = self._report(folders, bell)
        _remove(folders.node)  # all of it is on the server
        return exit_code(ended)

    # Beginning --------------------------------------------------------------------------------------------------

    def _say_hello(self) -> dict[str, Any]:
        port = free_port("")  # on all addresses: ranks of other nodes will come to it

        def say() -> Answer:
            hello = {
                "incarnation": self._incarnation,
                "address": self._post.address or self._courier.own_address(),
                "port": port,
                "host": os.uname().nodename[:200],
            }
            return self._courier.post("hello", hello, meanwhile=_load_the_rest)

        while True:
            answer = self._persist(say)
            if answer.status == 200:
                return answer.json()
            if self._household.is_told_to_stop:
                raise Over(OVER, "told to stop before the other nodes were there")
            self._household.wait(min(_LONGEST_HELLO_PAUSE_S, max(0.0, float(answer.json().get("wait_s", 0.0)))))

    def _start(self, welcome: Mapping[str, Any], folders: Folders, bell: Bell) -> dict[str, Any] | None:
        """Start the supervisor; or the outcome of a node that cannot."""
        from .completion import complete_plan
        from .supervisor import supervise

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
        from .fetch import fetch_code

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
        """Until there is an answer. Raises Over if this node is not wanted, Refused for what stays refused."""
        backoff_s, most_s = BACKOFF_S
        refusals = 0
        while True:
            try:
                return act()
            except Refused as refusal:
                refusals += 1
                if refusal.status == 410:
                    raise Over(OVER, str(refusal)) from None
                if refusal.status == 409 or (refusal.status == 401 and refusals >= _TOKEN_TRIES):
                    raise Over(REFUSED, str(refusal)) from None
                if refusal.status != 401 and refusals >= _TRIES:
                    raise
                _say(str(refusal))
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
        refusals, was_heard = 0, False
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
                    refusals, was_heard = 0, True
                    self._pass_on(receipt["stop"], folders)
                    if receipt["ended"]:
                        return read_json(os.path.join(folders.node, layout.OUTCOME)) or {"reason": "lost"}
            except Refused as refusal:
                if refusal.status in (409, 410):
                    raise Over(OVER, str(refusal)) from None
                if refusal.status == 413 and outbox.shrink(draft):
                    continue
                refusals += refusal.status != 401  # a key may come back, and ranks are running
                if refusals >= _REPORT_TRIES:
                    return self._give_up(refusal, folders, was_heard=was_heard)
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
        try:
            write_json(os.path.join(folders.node, layout.STOP), dict(wish))
            self._wish = wish
        except OSError as error:
            # A full disk, say. The ranks are stopped all the same, with the grace of their plan; the wish itself is
            # written when the next answer repeats it.
            _say("the wish to stop cannot be written: %s" % error)
            if self._household.supervisor is None or wish == self._was_told:
                return
        self._was_told = wish
        self._household.signal_supervisor(signal.SIGTERM)

    def _give_up(self, refusal: Refused, folders: Folders, *, was_heard: bool) -> Mapping[str, Any]:
        """The server takes no report of this node, and never will. What nobody can see is ended; the outcome alone,
        without logs and the rest, may be bearable."""
        self._household.end()
        message = "the server refuses what this node reports: %s" % refusal
        ended = read_json(os.path.join(folders.node, layout.OUTCOME))
        if ended is None:
            status = read_json(os.path.join(folders.node, layout.STATUS))
            ended = outcome.summary(
                reason="lost" if was_heard else "launch_failed",  # one that was heard before may do better elsewhere
                message=message,
                started_at=status["started_at"] if status else None,
                ended_at=time.time(),
            )
        else:
            ended["message"] = "; ".join(filter(None, (str(ended.get("message") or "")[:_LONGEST_MESSAGE], message)))
        _say(message)
        report = json.dumps({"incarnation": self._incarnation, "outcome": ended}).encode() + b"\n"
        self._persist(lambda: self._courier.post("report", report))
        return ended

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


def _remove(folder: str) -> None:
    import shutil  # not before the end

    shutil.rmtree(folder, ignore_errors=True)


def _load_the_rest() -> None:
    """What takes long to load, and is not needed to say hello."""
    from . import completion, fetch, supervisor  # noqa: F401


def _say(text: str) -> None:
    """To the container's own log: the server's is what may be out of reach."""
    sys.stderr.write("windlass: %s\n" % text)
    sys.stderr.flush()

"""The Slurm engine: an attempt is one job, its nodes are folders on a shared file system. What nodes did is read from
their folders; whether they still can do anything is read from Slurm's tables."""

from __future__ import annotations

import fnmatch
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from windlass.core.clock import Clock
from windlass.core.errors import LaunchFailed, Unavailable
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.engines.contract import CodeStore, EngineContext, Launch, Notice, Observation, Phase, StopKind
from windlass.engines.folders.faults import explain_os_error
from windlass.engines.folders.node import NodeFolder
from windlass.engines.folders.observing import NodeLook, decide_stop, observe, told_recoveries
from windlass.engines.slurm.attempt import SCRIPT, Attempt, load_attempt
from windlass.engines.slurm.commands import SUBMIT_TIMEOUT_S, Slurm, find_commands
from windlass.engines.slurm.delivery import deliver_agent
from windlass.engines.slurm.inventory import Holding, decide_inventory
from windlass.engines.slurm.observing import (
    JobView,
    Standing,
    explain_end,
    is_past_life,
    needs_explanation,
    view_jobs,
)
from windlass.engines.slurm.plans import blobs_dir, render_slurm_plans, token_of, token_prefix
from windlass.engines.slurm.script import Site, effective_timeout_s, merge_options, render_sbatch
from windlass.engines.slurm.tables import JobLife
from windlass.engines.slurm.watcher import Watcher
from windlass.wire.slurm import SlurmConfig, SlurmOptions

_DOUBT_S = 1.0  # a submission that was broken off is in Slurm's tables by then, or never
_EXPLANATION_PATIENCE_S = 15.0


class SlurmEngine:
    type = "slurm"
    launches_at_once = 8

    def __init__(self, config: SlurmConfig, context: EngineContext) -> None:
        self.name = context.name
        self._config = config
        self._clock: Clock = context.clock
        self._code: CodeStore = context.code
        self._shared_dir = config.shared_dir.absolute()
        self._slurm = Slurm(bin_dir=config.bin_dir, conf=config.conf)
        self._opened_at = time.monotonic()
        self._agent: Path | None = None
        self._delivering = threading.Lock()
        self._graces: Mapping[str, int] | None = None
        self._seen: dict[str, Attempt] = {}
        self._held: dict[str, tuple[Holding, ...]] = {}  # by token; plans do not change
        self._watcher = Watcher(
            self._slurm,
            prefix=token_prefix(self._shared_dir),
            partition=config.defaults.partition,
            interval_s=config.poll_interval_s,
            notify=context.notify,
            wants_switches=not config.topology_features,
        )

    def inventory(self) -> Sequence[Node]:
        rows = self._watcher.load_nodes()
        wanted = self._config.nodes
        kept = [row for row in rows.values() if not wanted or any(fnmatch.fnmatch(row.name, one) for one in wanted)]
        reserved = self._config.defaults.reservation is not None
        return decide_inventory(
            self.name,
            kept,
            self._holdings(),
            may_use_reserved=reserved,
            topology_features=self._config.topology_features,
            switches=self._watcher.switches,
            prices=self._config.node_prices,
            spot_nodes=self._config.spot_nodes,
        )

    def launch(self, launch: Launch) -> None:
        try:
            attempt = self._look_up(launch.attempt_id)
            first_time = attempt is None
            if attempt is None:
                attempt = self._write_plans(launch)
            if attempt.plans is None or attempt.job_id is not None or self._all_ended(attempt):
                return
            if not first_time and not self._is_unsubmitted(attempt):
                return
            self._submit(launch, attempt)
        except OSError as error:
            raise explain_os_error(error, launch.attempt_id, self._shared_dir) from error

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        return {attempt_id: self._observe(attempt_id) for attempt_id in attempt_ids}

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        attempt = self._look_up(attempt_id)
        if attempt is not None and attempt.plans is not None:
            self._stop(attempt, grace_s=grace_s, reason=kind.on_request, kind=kind)

    def release(self, attempt_id: str) -> None:
        attempt = self._look_up(attempt_id)
        if attempt is None or attempt.plans is None:
            return
        now = self._clock.now()
        left = [node for node in attempt.nodes if node.outcome() is None]
        attempt.wish_to_stop(left, grace_s=0.0, reason="released", kind=StopKind.CANCELLED)
        for node in left:
            node.settle_unstarted(now)
        self._watcher.cancel(attempt.token)
        attempt.release()
        self._seen.pop(attempt_id, None)

    def close(self) -> None:
        self._watcher.close()

    # ---- launching -----------------------------------------------------------------------------------------------

    def _options(self, launch: Launch) -> SlurmOptions:
        try:
            given = SlurmOptions.model_validate(dict(launch.options))
        except ValidationError as error:
            raise LaunchFailed(f"the spec's `slurm` section: {error}") from error
        return merge_options(self._config.defaults, given)

    def _write_plans(self, launch: Launch) -> Attempt:
        """All plans are written before the job is submitted, so a missing one means that there is none."""
        options = self._options(launch)
        plans = render_slurm_plans(
            launch,
            shared_dir=self._shared_dir,
            timeout_s=effective_timeout_s(launch, options),
            rendezvous_s=self._config.rendezvous_s,
        )
        if plans[0]["code"] is not None and launch.code_digest is not None:
            self._code.lay_in(launch.code_digest, blobs_dir(self._shared_dir))
        elif launch.workdir is None:
            Path(plans[0]["workdir"]).mkdir(parents=True, exist_ok=True)
        for plan in plans:
            folder = NodeFolder(path=Path(plan["node_dir"]), attempt_id=launch.attempt_id, rank=plan["node_rank"])
            folder.write_plan(plan)
        attempt = self._look_up(launch.attempt_id)
        assert attempt is not None
        return attempt

    def _submit(self, launch: Launch, attempt: Attempt) -> None:
        self._watcher.want()
        if self._watcher.problem is not None:
            attempt.doubtful_since = 0.0  # nothing was tried
            raise Unavailable(self._watcher.problem)
        agent = self._deliver_agent()
        options = self._options(launch)
        site = Site(
            shared_dir=self._shared_dir,
            agent=agent,
            python=self._config.python or sys.executable,
            container_runtime=self._config.container_runtime,
            container_python=self._config.container_python,
            requeue=self._config.requeue,
            single_node_steps=self._wants_steps(options),
            bin_dir=find_commands(self._config.bin_dir),
        )
        text = render_sbatch(launch, options, site, attempt_dir=attempt.path, token=attempt.token)
        script = attempt.path / SCRIPT
        script.write_text(text)
        env = {"WINDLASS_ATTEMPT_ID": launch.attempt_id}
        if launch.secrets:
            env["WINDLASS_SECRETS"] = json.dumps(dict(launch.secrets))
        if self._config.spot_notices is not None:
            env["WINDLASS_SPOT_NOTICES"] = self._config.spot_notices
        try:
            job_id = self._slurm.submit(script, env)
        finally:
            attempt.doubtful_since = time.monotonic()
        attempt.submitted_at = time.monotonic()
        attempt.note_job(job_id)

    def _deliver_agent(self) -> Path:
        with self._delivering:
            if self._agent is None or not self._agent.exists():
                self._agent = deliver_agent(self._shared_dir)
            return self._agent

    def _wants_steps(self, options: SlurmOptions) -> bool:
        if self._config.single_node_steps is not None:
            return self._config.single_node_steps
        if self._graces is None:
            self._graces = self._slurm.list_graces()
        names = (options.partition or "").split(",")
        return any(self._graces.get(name, 0) for name in names)

    def _is_unsubmitted(self, attempt: Attempt) -> bool:
        """Whether it is certain that no job was submitted. Raises Unavailable while that cannot be told."""
        view = self._view(attempt)
        if view.standing is Standing.UNKNOWN:
            raise Unavailable(view.detail or f"whether {attempt.attempt_id} was submitted is not known yet")
        return view.standing is Standing.UNSUBMITTED

    # ---- observing -----------------------------------------------------------------------------------------------

    def _look_up(self, attempt_id: str) -> Attempt | None:
        known = self._seen.get(attempt_id)
        if known is not None:
            return known
        attempt = load_attempt(self._shared_dir, attempt_id, token_of(self._shared_dir, attempt_id))
        if attempt is not None and attempt.plans is not None:
            # Another controller that submits it has until its command is ended; without a script, nobody does.
            others_s = SUBMIT_TIMEOUT_S if (attempt.path / SCRIPT).exists() else 0.0
            attempt.doubtful_since = self._opened_at + others_s
            self._seen[attempt_id] = attempt
        return attempt

    def _all_ended(self, attempt: Attempt) -> bool:
        return all(attempt.node_end(node) is not None for node in attempt.nodes)

    def _observe(self, attempt_id: str) -> Observation:
        attempt = self._look_up(attempt_id)
        if attempt is None:
            return Observation(phase=Phase.ABSENT)
        if attempt.ended is not None:
            return attempt.ended
        if attempt.plans is None:
            return _released(attempt)
        if attempt.environment is None:
            attempt.environment = attempt.nodes[0].environment()
        if self._all_ended(attempt) and not self._wants_explanation(attempt):
            view = JobView(standing=Standing.UNKNOWN)  # Slurm has nothing to add
        else:
            self._watcher.want()
            view = self._view(attempt)
            self._conclude(attempt, view)
        looks = [self._look_at(attempt, node, view) for node in attempt.nodes]
        observation = observe(looks, environment=attempt.environment, notice=self._notice(attempt), detail=view.detail)
        if observation.phase is Phase.ENDED:
            attempt.ended = observation
        elif (rest := decide_stop(looks)) is not None:
            left = [node for node in attempt.nodes if attempt.node_end(node) is None]
            if not all(node.is_asked_to_stop() for node in left):
                grace_s = float(attempt.plans[0]["grace_s"])
                self._stop(attempt, grace_s=grace_s, reason=rest.reason, kind=rest.kind)
        return observation

    def _view(self, attempt: Attempt) -> JobView:
        """What Slurm has for the attempt now. What it said last stays true only where it cannot change any more."""
        tables, problem = self._watcher.tables, self._watcher.problem
        rows = tables.jobs.get(attempt.token, ()) if tables is not None else ()
        if rows and attempt.job_id is None:
            attempt.note_job(rows[-1].job_id)  # the submission whose answer nobody heard
        if tables is None or (problem is not None and not all(row.life is JobLife.OVER for row in rows)):
            return JobView(standing=Standing.UNKNOWN, detail=problem)
        if not rows:
            if problem is not None:
                return JobView(standing=Standing.UNKNOWN, detail=problem)
            if attempt.submitted_at is not None and tables.asked_at <= attempt.submitted_at:
                return JobView(standing=Standing.WAITING, detail="submitted to Slurm")
            if attempt.job_id is None and tables.asked_at <= attempt.doubtful_since + _DOUBT_S:
                return JobView(standing=Standing.UNKNOWN, detail="whether it was submitted is not known yet")
        submitted_as = attempt.job_id or _started_by(attempt)
        if not rows and submitted_as is not None and submitted_as not in tables.past:
            self._watcher.look_back(submitted_as)
            return JobView(standing=Standing.UNKNOWN, detail=f"job {submitted_as} is not in Slurm's list")
        past = tables.past.get(submitted_as) if submitted_as is not None else None
        if past is not None and past.name != f"windlass-{attempt.attempt_id}":
            past = None  # the id was used again for another job
        nodes = [row for name in attempt.node_names if (row := self._watcher.nodes.get(name)) is not None]
        return view_jobs(rows, past=past, submitted_as=submitted_as, nodes=nodes)

    def _conclude(self, attempt: Attempt, view: JobView) -> None:
        """Put an end on record for nodes that can leave none any more, once their folders had time to show theirs."""
        statuses = [status for node in attempt.nodes if (status := node.status()) is not None]
        requeued = any(is_past_life(status, view) for status in statuses)
        if requeued:
            self._watcher.cancel(attempt.token)  # its next life would only find that the attempt has been
        hopeless = view.is_hopeless and not statuses
        if view.standing is not Standing.OVER and not requeued and not hopeless:
            attempt.over_since = None
            return
        now = time.monotonic()
        if attempt.over_since is None:
            attempt.over_since = now
        attempt.look_anew()
        if now - attempt.over_since < self._config.settle_s or self._all_ended(attempt):
            return
        if hopeless:
            self._watcher.cancel(attempt.token)  # should it begin all the same, it finds that the attempt is over
        reason, message = (ExitReason.LOST, "Slurm requeued its job") if requeued else (view.reason, view.message)
        if view.is_unexplained and (said := attempt.last_words()):
            message += f": {said}"
        attempt.decide_ends(reason, message, self._clock.now(), down=view.down)

    def _wants_explanation(self, attempt: Attempt) -> bool:
        """A supervisor told to stop from outside cannot know by whom. Slurm does, but says so a moment later."""
        ends = [(attempt.node_end(node), node.wish()) for node in attempt.nodes]
        return any(end is not None and needs_explanation(end, wish) for end, wish in ends)

    def _look_at(self, attempt: Attempt, node: NodeFolder, view: JobView) -> NodeLook:
        end = attempt.node_end(node)
        status = node.status()
        started_at, state = None, None
        if end is not None and needs_explanation(end, node.wish()):
            waited_s = self._clock.now() - end["ended_at"]
            is_told = view.standing is Standing.OVER or (status is not None and is_past_life(status, view))
            end = explain_end(end, view, attempt.node_names) if is_told or waited_s > _EXPLANATION_PATIENCE_S else None
        if end is not None:
            phase, started_at = Phase.ENDED, end["started_at"]
        elif status is not None:
            started_at, state = status["started_at"], status["state"]
            phase = Phase.STARTING if state == "starting" else Phase.RUNNING
        elif view.standing is Standing.UNKNOWN:
            phase = Phase.UNKNOWN
        elif view.standing is Standing.UNSUBMITTED:
            phase = Phase.ABSENT
        else:
            phase = Phase.STARTING
        return NodeLook(
            log_dir=str(node.path),
            phase=phase,
            outcome=end,
            started_at=started_at,
            usage=node.usage(),
            state=state,
            recoveries=told_recoveries(status),
        )

    def _notice(self, attempt: Attempt) -> Notice | None:
        if not self._config.drain_is_notice:
            return None
        nodes = [self._watcher.nodes.get(name) for name in attempt.node_names]
        going = [row.name for row in nodes if row is not None and row.is_going]
        return Notice(message=f"node {', '.join(going)} is draining in Slurm") if going else None

    def _holdings(self) -> list[Holding]:
        """What attempts of ours hold on nodes, as far as Slurm has given it to them; those of other controllers too."""
        tables = self._watcher.tables
        jobs = tables.jobs if tables is not None else {}
        alive = [token for token, rows in jobs.items() if any(row.life is JobLife.ALIVE for row in rows)]
        self._held = {token: self._held.get(token) or self._load_holdings(token) for token in alive}
        return [holding for holdings in self._held.values() for holding in holdings]

    def _load_holdings(self, token: str) -> tuple[Holding, ...]:
        attempt_id = token.removeprefix(token_prefix(self._shared_dir))
        attempt = self._seen.get(attempt_id) or load_attempt(self._shared_dir, attempt_id, token)
        return tuple(
            Holding(
                node=plan["node_name"],
                cpus=plan["cpus"],
                memory_bytes=plan["memory_limit_bytes"] or 0,
                gpus=plan["gpu_count"],
            )
            for plan in (attempt.plans if attempt is not None else None) or ()
        )

    # ---- stopping ------------------------------------------------------------------------------------------------

    def _stop(self, attempt: Attempt, *, grace_s: float, reason: str, kind: StopKind = StopKind.CANCELLED) -> None:
        left = [node for node in attempt.nodes if attempt.node_end(node) is None]
        if not left:
            return
        attempt.wish_to_stop(left, grace_s=grace_s, reason=reason, kind=kind)
        now = self._clock.now()
        unstarted = [node.settle_unstarted(now) for node in left]
        if all(unstarted) and len(left) == len(attempt.nodes):
            self._watcher.cancel(attempt.token)
        else:
            self._watcher.nudge(attempt.token)


def _started_by(attempt: Attempt) -> str | None:
    """The job of a supervisor that has started, whoever submitted it."""
    for node in attempt.nodes:
        status = node.status()
        if status is not None and status.get("job"):
            return str(status["job"]["job_id"]) or None
    return None


def _released(attempt: Attempt) -> Observation:
    looks = []
    for node in attempt.nodes:
        end = attempt.node_end(node)
        if end is None:
            gone = Exit(reason=ExitReason.LOST, message="released before its end was seen")
            return Observation(phase=Phase.ENDED, exit=gone, log_dirs=tuple(str(node.path) for node in attempt.nodes))
        looks.append(NodeLook(log_dir=str(node.path), phase=Phase.ENDED, outcome=end, started_at=end["started_at"]))
    return observe(looks)

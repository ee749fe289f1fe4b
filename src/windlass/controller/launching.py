"""From a run and its attempt to what an engine starts: `render_launch`, pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from windlass.core.accelerators import is_tpu
from windlass.core.wanted import as_environment
from windlass.engines.contract import InPlace, Launch
from windlass.runs.command import fill_roles, is_self_launching, params_json, workers_per_node
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.snapshot import time_left_s
from windlass.wire.checkpoints import CheckpointSpec

# What a run on the server's own machine sees of the server's environment: nothing of Windlass, nothing secret, what
# programs need to work.
_INHERITED = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_LEAST_LOG_BYTES = 1 << 20  # of a rank, however many there are


def render_launch(
    run: RunRecord,
    attempt: AttemptRecord,
    secrets: Mapping[str, str],
    *,
    engine_type: str,
    inherited: Mapping[str, str],
    key: str = "",
    told: Mapping[str, str] | None = None,
    log_limit_bytes: int | None = None,
) -> Launch:
    """`key`: a fresh secret that the attempt's supervisors share. `told`: more variables, which the user's win over.
    `log_limit_bytes`: of all ranks together."""
    spec = run.spec
    workers = workers_per_node(spec, run.argv, gpus=len(attempt.placement.shares[0].gpu_indices))
    env = {
        "WINDLASS_PARAMS": params_json(spec.params),
        "WINDLASS_SEED": str(run.seed),
        "WINDLASS_RUN_NAME": run.name,
        "WINDLASS_PROJECT": run.project,
        **({"WINDLASS_FRAMEWORK": str(spec.framework)} if spec.framework else {}),
        **_plan(spec.plan),
        **_checkpoint(spec.checkpoint, run.id),
        **(told or {}),
        **spec.env,
    }
    return Launch(
        run_id=run.id,
        attempt_id=attempt.id,
        attempt=attempt.number,
        first_attempt=run.first_attempt,
        placement=attempt.placement,
        argv=run.argv,
        workers_per_node=workers,
        self_launching=is_self_launching(run.argv) and not spec.roles,
        roles=fill_roles(spec),
        env=env,
        host_env={name: inherited[name] for name in _INHERITED if name in inherited},
        origin_env=run.origin.get("env") or {},
        secrets=secrets,
        code_digest=run.code_digest,
        workdir=spec.workdir,
        search_path=run.origin.get("search_path") or inherited.get("PATH", os.defpath),
        timeout_s=time_left_s(spec.timeout, run.ran_s),
        grace_s=spec.grace,
        hang=spec.hang,
        in_place=_in_place(run, key),
        warm=spec.warm,
        project=run.project,
        image=spec.image,
        tpus=is_tpu(run.resources.gpu_type),
        log_limit_bytes=_log_limit(log_limit_bytes, len(attempt.placement.shares) * workers),
        tensorboard=spec.tensorboard,
        options=_options(run, engine_type),
    )


def _log_limit(of_run_bytes: int | None, ranks: int) -> int | None:
    return None if of_run_bytes is None else max(_LEAST_LOG_BYTES, of_run_bytes // max(1, ranks))


def _in_place(run: RunRecord, key: str) -> InPlace | None:
    policy = run.retry_policy
    return InPlace(most=policy.max, errors_too=policy.errors_too, key=key) if policy.max else None


def _plan(plan: str | Mapping[str, Any] | None) -> dict[str, str]:
    """The run's plan as `windlass.job` reads it; without one nothing is said."""
    return {} if plan is None else {"WINDLASS_PLAN": as_environment(plan)}


def _checkpoint(wanted: CheckpointSpec | None, run_id: str) -> dict[str, str]:
    """As `windlass.job` reads it. The folder is the run's own, the same for all of its attempts. Where none is asked
    for, engines name one if their nodes have a folder that outlives attempts."""
    if wanted is None:
        return {}
    told = {"WINDLASS_CHECKPOINT": wanted.model_dump_json(exclude_none=True, exclude={"folder"})}
    if wanted.folder is not None:
        told["WINDLASS_CHECKPOINT_DIR"] = f"{wanted.folder.rstrip('/')}/{run_id}"
    return told


def _options(run: RunRecord, engine_type: str) -> dict[str, Any]:
    """The section of the spec that is for this type of engine, without what was not given."""
    section = run.spec_data.get(engine_type) or {}
    return {key: value for key, value in section.items() if value is not None}

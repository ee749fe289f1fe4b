"""What an administrator writes about shares, quotas, limits and the order, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from windlass.core.errors import InvalidConfig
from windlass.scheduling.core.types import Project
from windlass.scheduling.rules import Rules
from windlass.server.settings import Settings
from windlass.simulation.policies import POLICIES
from windlass.wire.scheduling import SchedulingSection


def rules_of(home: Path, text: str = "{}", environ: dict[str, str] | None = None) -> Rules:
    (home / "config.yaml").write_text(text)
    return Settings.from_environ(environ or {}, home=home).rules


def test_without_settings_the_rules_are_the_usual_ones(tmp_path: Path) -> None:
    assert rules_of(tmp_path) == Rules()


def test_every_policy_that_can_be_tried_can_be_used() -> None:
    assert set(get_args(SchedulingSection.model_fields["policy"].annotation)) == set(POLICIES)


def test_projects_with_shares_quotas_and_limits(tmp_path: Path) -> None:
    found = rules_of(
        tmp_path,
        "projects:\n"
        "  lab: {limit: {gpu: 32, runs: 20}, max_queued: 100}\n"
        "  vision: {parent: lab, weight: 2, quota: {gpu: 16, gpu:h100: 8, cpu: 64, memory: 1TB}, engines: [local]}\n",
    )
    assert found.projects == {
        "lab": Project(name="lab", limit={"gpu": 32, "runs": 20}),
        "vision": Project(
            name="vision", parent="lab", weight=2, quota={"gpu": 16, "gpu:h100": 8, "cpu": 64, "memory": 1e12}
        ),
    }
    assert found.most_queued_of_project == {"lab": 100}
    assert found.access.of_project("vision") == {"local"}


def test_the_section_changes_the_policy(tmp_path: Path) -> None:
    environ = {"WINDLASS_SCHEDULING_USER_LIMIT": '{"gpu": 8, "runs": 10}', "WINDLASS_SCHEDULING_MIN_RUN": "10m"}
    found = rules_of(
        tmp_path,
        "scheduling: {policy: least-attained, preempt: false, half_life: 1d, ageing: 2h, starving: 3h, max_queued: 9,\n"
        "  max_queued_per_user: 3}\n",
        environ,
    )
    policy = found.policy
    assert policy.rank is POLICIES["least-attained"].rank
    assert (policy.preempts, policy.backfill) == (False, True)
    assert (policy.half_life_s, policy.min_run_s, policy.ageing_s, policy.starving_s) == (86_400, 600, 7_200, 10_800)
    assert policy.user_limit == {"gpu": 8, "runs": 10}
    assert (found.most_queued, found.most_queued_of_user) == (9, 3)


def test_a_policy_that_stops_nobody_goes_on_to_do_so(tmp_path: Path) -> None:
    policy = rules_of(tmp_path, "scheduling: {policy: fifo, preempt: true}\n").policy
    assert (policy.preempts, policy.backfill) == (False, False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a: {quota: {gpus: 1}}}", "`projects.a.quota`: unknown resource 'gpus'; known: gpu, gpu:TYPE"),
        ("{a: {quota: {runs: 1}}}", "`projects.a.quota`: unknown resource 'runs'; known: gpu, gpu:TYPE"),
        ("{a: {limit: {'gpu:': 1}}}", "`projects.a.limit`: unknown resource 'gpu:'"),
        ("{a: {limit: {memory: much}}}", "'much' is not a size"),
        ("{a: {limit: {gpu: -1}}}", "`projects.a.limit.gpu`: is -1, and must be at least 0"),
        ("{a: {weight: 0}}", "`projects.a.weight`: is 0, and must be more than 0"),
        ("{a: {parent: b}}", "`projects.a.parent`: there is no project 'b'; named here: none"),
        ("{a: {parent: a}}", "`projects.a.parent`: goes round in a circle: a → a"),
        ("{a: {parent: b}, b: {parent: c}, c: {parent: b}}", "goes round in a circle: a → b → c → b"),
        ("{a: {quota: {gpu: 8}, limit: {gpu: 4}}}", "guarantees gpu: 8, and its own limit is gpu: 4"),
        ("{a: {quota: {gpu:h100: 8}, limit: {gpu: 4}}}", "guarantees gpu:h100: 8, and its own limit is gpu: 4"),
        ("{a: {parent: b, quota: {cpu: 8}}, b: {limit: {cpu: 4}}}", "guarantees cpu: 8, and the limit of b is cpu: 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        rules_of(tmp_path, f"projects: {text}\n")
    [told] = refused.value.problems
    assert problem in told
    assert told.startswith("config.yaml:1: ")


def test_an_unknown_policy_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="'windlass', 'fifo', 'backfill', 'least-attained' or 'no-preemption'"):
        rules_of(tmp_path, "scheduling: {policy: clairvoyant}\n")


@pytest.mark.parametrize(("policy", "margin"), [("windlass", None), ("least-attained", 2.0)])
def test_only_the_order_that_is_learned_waits_for_runs_to_learn_from(
    tmp_path: Path, policy: str, margin: float | None
) -> None:
    rules = rules_of(tmp_path, f"scheduling: {{policy: {policy}}}")
    assert rules.policy_after(0).index_margin == margin
    assert rules.policy_after(30).index_margin == 2.0

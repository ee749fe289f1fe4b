"""Making and removing the objects of an attempt. All of its pods are made or none; both ways are safe to repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from functools import partial

from windlass.core.errors import LaunchFailed, Unavailable
from windlass.engines.contract import Launch
from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.api import ClusterApi, Json, Refused
from windlass.engines.kubernetes.jobs import render_job, render_jobset
from windlass.engines.kubernetes.manifests import (
    Site,
    render_pod,
    render_pod_group,
    render_policy,
    render_service,
    render_tokens,
)
from windlass.wire.kubernetes import KubernetesOptions, Mode, Queueing

# A pod whose attempt is over has nothing left to save; this lets its node notice before the object is gone.
_RELEASE_GRACE_S = 1
_WRONG = (400, 413, 422)  # what was asked for, as opposed to who asked or when
_JOBSET = "jobset.x-k8s.io/v1alpha2"
_VOLCANO = "scheduling.volcano.sh/v1beta1"


class AttemptObjects:
    def __init__(self, api: ClusterApi, site: Site, threads: Executor) -> None:
        self._api = api
        self._site = site
        self._threads = threads
        self._policies: set[str] = set()  # projects whose policy is there
        namespace = site.config.namespace
        self._core = f"/api/v1/namespaces/{namespace}"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._jobsets = f"/apis/{_JOBSET}/namespaces/{namespace}/jobsets"
        self._groups = f"/apis/{_VOLCANO}/namespaces/{namespace}/podgroups"
        self._policy_path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"

    def make(
        self,
        launch: Launch,
        options: KubernetesOptions,
        ranks: Sequence[int],
        tokens: Sequence[str],
        *,
        book: Callable[[], None],
    ) -> list[Json]:
        """The pods made (none under a Job, which makes its own). Raises LaunchFailed if the cluster refuses one of
        them, and has removed the others then; Unavailable if trying again may help. `book` need not be done before:
        no container starts before its secret is there, and that is made after it."""
        try:
            if self._site.config.network_policy and launch.project not in self._policies:
                self._api.ensure(self._policy_path, render_policy(launch, self._site))
                self._policies.add(launch.project)
            make = self._make_one if self._is_one_pod(launch) else self._make_gang
            return make(launch, options, ranks, lambda owner: self._lay_tokens(launch, tokens, owner, book))
        except Refused as refusal:
            self.remove(launch.attempt_id)
            if _may_pass(refusal):
                raise Unavailable(f"the cluster does not let us now: {refusal.told or refusal}") from refusal
            raise LaunchFailed(f"the cluster refused it: {refusal.told or refusal}") from refusal

    def _is_one_pod(self, launch: Launch) -> bool:
        config = self._site.config
        return (
            len(launch.placement.shares) == 1 and config.mode is Mode.PODS and config.queueing is not Queueing.VOLCANO
        )

    def _make_one(
        self, launch: Launch, options: KubernetesOptions, ranks: Sequence[int], lay_tokens: Callable[[Json], None]
    ) -> list[Json]:
        """The pod first, as it takes longest to become something; it owns the rest."""
        [rank] = ranks
        pod = self._api.create_or_get(f"{self._core}/pods", render_pod(launch, rank, self._site, options, None))
        service = render_service(launch, self._site, pod)
        works = [lambda: lay_tokens(pod), lambda: self._api.ensure(f"{self._core}/services", service)]
        _all(self._threads, works)
        return [pod]

    def _make_gang(
        self, launch: Launch, options: KubernetesOptions, ranks: Sequence[int], lay_tokens: Callable[[Json], None]
    ) -> list[Json]:
        """The service first, as it owns the rest: pods come and go."""
        owner = self._api.create_or_get(f"{self._core}/services", render_service(launch, self._site))
        if self._site.config.queueing is Queueing.VOLCANO:
            group = render_pod_group(launch, self._site, options, owner)
            self._api.ensure(self._groups, group)
        made: list[Json] = []
        makers = self._pod_makers(launch, options, ranks, owner, made)
        if self._site.config.mode is Mode.PODS:
            _all(self._threads, [*makers, lambda: lay_tokens(owner)])
        else:  # should this end in between, nobody would see what the pods of a Job wait for
            lay_tokens(owner)
            _all(self._threads, makers)
        return made

    def _lay_tokens(self, launch: Launch, tokens: Sequence[str], owner: Json, book: Callable[[], None]) -> None:
        book()
        self._api.ensure(f"{self._core}/secrets", render_tokens(launch, self._site, tokens, owner))

    def kill(self, attempt_id: str) -> None:
        """Remove the pods now, whether or not their machines answer."""
        selector = f"{names.ATTEMPT}={attempt_id}"
        self._remove_all([lambda: self._api.delete(f"{self._core}/pods", grace_s=0, labelSelector=selector)])

    def remove(self, attempt_id: str, *, grace_s: int = _RELEASE_GRACE_S) -> None:
        """Everything that was made for the attempt. What owns the rest goes last, so that a removal that was cut
        short can be found and finished. Without grace, objects go also if their machines do not answer."""
        name, config = names.attempt_name(attempt_id), self._site.config
        first: list[Callable[[], None]] = []
        if config.mode is Mode.INDEXED_JOB:
            first.append(lambda: self._api.delete(f"{self._jobs}/{name}"))
        if config.mode is Mode.JOBSET:
            first.append(lambda: self._api.delete(f"{self._jobsets}/{name}"))
        if config.queueing is Queueing.VOLCANO:
            first.append(lambda: self._api.delete(f"{self._groups}/{name}"))
        selector = f"{names.ATTEMPT}={attempt_id}"
        first.append(lambda: self._api.delete(f"{self._core}/pods", grace_s=grace_s, labelSelector=selector))
        first.append(lambda: self._api.delete(f"{self._core}/secrets/{name}"))
        self._remove_all(first)
        self._remove_all([lambda: self._api.delete(f"{self._core}/services/{name}")])

    def _remove_all(self, removals: Sequence[Callable[[], None]]) -> None:
        """Raises Unavailable alone: what may not be removed now is tried again, and keeps nothing else waiting."""
        try:
            _all(self._threads, removals)
        except Refused as refusal:
            raise Unavailable(f"the cluster does not let us remove it: {refusal.told or refusal}") from refusal

    def _pod_makers(
        self, launch: Launch, options: KubernetesOptions, ranks: Sequence[int], owner: Json, made: list[Json]
    ) -> list[Callable[[], object]]:
        """What is to be done for the pods to be there; those that it makes itself end up in `made`."""

        def make_job() -> None:
            job = self._api.ensure(self._jobs, render_job(launch, self._site, options, owner))
            if job is not None and job["spec"].get("completionMode") != "Indexed":
                raise Refused(422, "Old", "the cluster is too old for Indexed Jobs; set the engine's `mode` to pods")

        def make_jobset() -> None:
            if not self._api.has(_JOBSET, "JobSet"):
                raise Refused(422, "Missing", "the cluster has no JobSets; install them, or set `mode` to pods")
            self._api.ensure(self._jobsets, render_jobset(launch, self._site, options, owner))

        def make_pod(rank: int) -> None:
            manifest = render_pod(launch, rank, self._site, options, owner)
            made.append(self._api.create_or_get(f"{self._core}/pods", manifest))

        match self._site.config.mode:
            case Mode.INDEXED_JOB:
                return [make_job]
            case Mode.JOBSET:
                return [make_jobset]
            case Mode.PODS:
                return [partial(make_pod, rank) for rank in ranks]


def _all(threads: Executor, works: Sequence[Callable[[], object]]) -> None:
    """All of them, to their end, also if one fails; then what the first failure was."""
    if len(works) == 1:
        works[0]()
        return
    futures: list[Future[object]] = [threads.submit(work) for work in works]
    wait(futures)
    for future in futures:
        future.result()


def _may_pass(refusal: Refused) -> bool:
    """Whether it is the cluster's or its operator's trouble rather than the run's: a full quota, credentials that have
    run out, rights or a namespace that are missing. Runs wait for these; they do not fail for them."""
    if refusal.status == 403:
        return "exceeded quota" in refusal.told or "cannot create resource" in refusal.told
    return refusal.status not in _WRONG

"""What can be said about Kubernetes: the `kubernetes` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from windlass.core.quantities import parse_duration, parse_size
from windlass.wire.strict import StrictModel

# What Kubernetes itself accepts; refused here, a mistake is told at submission rather than at the third attempt.
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
VolumeName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Key = Annotated[
    str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
]
Value = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
MountPath = Annotated[str, Field(pattern=r"^/[^\x00:]*$", max_length=4096)]
SizeBytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0, le=2**60)]
DurationS = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86_400)]

RESERVED_PREFIX = "windlass.dev/"
RESERVED_VOLUMES = ("windlass", "shm", "tmp")


class Toleration(StrictModel):
    """A taint that pods may be placed in spite of."""

    key: Key | None = Field(None, description="no key tolerates every taint")
    value: Value | None = Field(None, description="no value tolerates every value of the key")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="default all")
    seconds: int | None = Field(None, ge=0, description="with NoExecute: how long")

    @model_validator(mode="after")
    def _seconds_go_with_no_execute(self) -> Toleration:
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("`seconds` goes with `effect: NoExecute`")
        return self


class Volume(StrictModel):
    """Something mounted into every rank's pod."""

    name: VolumeName
    mount: MountPath = Field(description="where ranks find it")
    claim: ObjectName | None = Field(None, description="a PersistentVolumeClaim that exists")
    host_path: MountPath | None = Field(None, description="a folder of the node")
    secret: ObjectName | None = Field(None, description="a Secret that exists, as files")
    config_map: ObjectName | None = Field(None, description="a ConfigMap that exists, as files")
    empty: SizeBytes | None = Field(None, description="scratch space of this size, gone with the pod")
    read_only: bool = False

    @model_validator(mode="after")
    def _is_one_thing(self) -> Volume:
        kinds = ("claim", "host_path", "secret", "config_map", "empty")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"volume '{self.name}' is one of {', '.join(kinds)}; {len(given)} are given")
        if self.name in RESERVED_VOLUMES:
            raise ValueError(f"'{self.name}' is a volume of Windlass itself; choose another name")
        return self


class KubernetesOptions(StrictModel):
    """The spec's `kubernetes:` section; what is given here wins over the engine's defaults."""

    node_selector: dict[Key, Value] = Field(default_factory=dict, description="labels a node must have")
    tolerations: tuple[Toleration, ...] = Field((), description="taints that do not matter")
    service_account: ObjectName | None = Field(None, description="the pods' service account")
    image_pull_secrets: tuple[ObjectName, ...] = Field((), description="Secrets to pull the image with")
    volumes: tuple[Volume, ...] = Field((), description="what is mounted into every pod")
    secrets: tuple[ObjectName, ...] = Field((), description="Secrets whose keys become environment variables")
    labels: dict[Key, Value] = Field(default_factory=dict, description="further labels of the pods")
    annotations: dict[Key, str] = Field(default_factory=dict, description="further annotations of the pods")
    priority_class: ObjectName | None = Field(None, description="a PriorityClass of the cluster")
    runtime_class: ObjectName | None = Field(None, description="a RuntimeClass of the cluster, for example gvisor")
    shm: SizeBytes | None = Field(None, description="size of /dev/shm; default what the node gives")
    queue: ObjectName | None = Field(None, description="the queue of Kueue or Volcano that admits it")

    @model_validator(mode="after")
    def _leaves_ours_alone(self) -> KubernetesOptions:
        ours = [key for key in (*self.labels, *self.annotations) if key.startswith(RESERVED_PREFIX)]
        if ours:
            raise ValueError(f"'{ours[0]}': labels and annotations under {RESERVED_PREFIX} are set by Windlass")
        names = [volume.name for volume in self.volumes]
        if len(set(names)) != len(names):
            raise ValueError(f"two volumes have the same name: {', '.join(names)}")
        return self


class Mode(StrEnum):
    PODS = "pods"
    INDEXED_JOB = "indexed-job"
    JOBSET = "jobset"


class Queueing(StrEnum):
    KUEUE = "kueue"
    VOLCANO = "volcano"


class KubernetesSecurity(StrictModel):
    """Who ranks are, and what they may write to."""

    uid: int = Field(1000, ge=0, description="the user that ranks run as; 0 is root")
    gid: int = Field(1000, ge=0, description="their group, which also owns mounted volumes")
    read_only_root: bool = Field(True, description="ranks write to their folder, /tmp and volumes only")
    host_paths: tuple[MountPath, ...] = Field((), description="folders of nodes (and those below) that specs may mount")
    service_accounts: tuple[ObjectName, ...] = Field((), description="service accounts that specs may choose")
    secrets: tuple[ObjectName, ...] = Field((), description="Secrets that specs may use")


class KubernetesConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["kubernetes"]
    kubeconfig: str | None = Field(None, description="a kubeconfig file; default the server's own service account")
    context: str | None = Field(None, description="a context of that file; default the current one")
    namespace: VolumeName = Field("windlass-runs", description="where pods are created; nothing else should live there")
    server_url: str | None = Field(None, description="where pods reach this server; default the server's own address")
    image: str | None = Field(None, description="for runs that name none; needs Python 3.9 or newer")
    python: str = Field("python3", description="the interpreter in the image that runs Windlass's agent")
    mode: Mode = Field(Mode.PODS, description="one pod per node, or a Job or JobSet where the cluster has them")
    queueing: Queueing | None = Field(None, description="a queue system that admits pods")
    node_selector: dict[Key, Value] = Field(default_factory=dict, description="labels of the nodes it may use")
    gpu_resource: Key = Field("nvidia.com/gpu", description="what a GPU is called")
    gpu_type_label: Key = Field("nvidia.com/gpu.product", description="the node label that names the type of GPU")
    tpu_resource: Key = Field("google.com/tpu", description="what a TPU is called, on nodes without GPUs")
    tpu_type_label: Key = Field(
        "cloud.google.com/gke-tpu-accelerator", description="the node label that names the type of TPU"
    )
    topology_labels: tuple[Key, ...] = Field(
        ("topology.kubernetes.io/zone",),
        description="node labels that say where a node stands, from the widest to the nearest: zone, rack, switch",
    )
    node_prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="dollars an hour of a node by its node.kubernetes.io/instance-type; the cheapest are used first",
    )
    network_policy: bool = Field(True, description="let only pods of the same project reach a pod")
    security: KubernetesSecurity = KubernetesSecurity()
    node_loss: DurationS = Field(60.0, description="how long a node may be silent before its pods are given up")
    schedule_patience: DurationS = Field(600.0, description="how long a pod may wait for its node")
    image_patience: DurationS = Field(300.0, description="how long an image may fail to arrive")
    defaults: KubernetesOptions = KubernetesOptions()

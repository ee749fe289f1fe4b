"""The cluster as a picture, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from windlass.cli.picture import render_cluster
from windlass.cli.terminal import Paint, cells
from windlass.wire.cluster import AsideView, ClusterView, EngineView, NodeRun, NodeView

GB = 10**9
NOW = 1000.0
_PAINTED = re.compile(r"\x1b\[[0-9;]*m")


def run(
    id: str,
    gpus: Iterable[int] = (),
    *,
    cpus: float = 4,
    name: str = "train",
    part: float = 1.0,
    project: str = "vision",
) -> NodeRun:
    return NodeRun(id=id, name=name, project=project, cpus=cpus, gpus=list(gpus), gpu_part=part, memory_bytes=8 * GB)


def node(
    name: str,
    *runs: NodeRun,
    gpus: int = 8,
    cpus: float = 64,
    engine: str = "hpc",
    topology: Sequence[str] = (),
    gpu_type: str = "h100",
) -> NodeView:
    return NodeView(
        engine=engine,
        name=name,
        cpus=cpus,
        cpus_used=sum(run.cpus for run in runs),
        memory_bytes=512 * GB,
        memory_used_bytes=sum(run.memory_bytes for run in runs),
        gpus=gpus,
        gpus_used=len({gpu for run in runs for gpu in run.gpus}),
        gpu_type=gpu_type if gpus else None,
        topology=list(topology),
        runs=list(runs),
        seen_at=NOW,
    )


def aside(name: str, reason: str = "ECC error") -> AsideView:
    return AsideView(
        engine="hpc", node=name, reason=reason, since=0, until=NOW + 600, times=1, by_hand=False, run_id=None
    )


def view(*nodes: NodeView, engines: Sequence[EngineView] = (), asides: Sequence[AsideView] = ()) -> ClusterView:
    return ClusterView(nodes=list(nodes), engines=list(engines), set_aside=list(asides), queued=0, running=0)


def draw(shown: ClusterView, *, width: int = 80, everything: bool = False, colours: bool = False) -> list[str]:
    return render_cluster(shown, width=width, paint=Paint(colours), now=NOW, everything=everything)


def test_a_block_per_gpu_and_a_letter_per_run() -> None:
    there = view(
        node("n1", run("r-big", range(8)), topology=["rack-1", "s1"]),
        node("n2", run("r-big", range(8)), topology=["rack-1", "s1"]),
        node("n3", run("r-mid", range(4), name="vit", project="nlp"), topology=["rack-1", "s2"]),
        node("n4", topology=["rack-1", "s2"]),
        asides=[aside("n4")],
    )
    assert draw(there) == [
        "hpc  4 nodes, 20 of 32 h100, 12 of 256 CPU in use",
        "  rack-1 / s1",
        "  n1  AAAAAAAA  8/8 h100  4/64 CPU  8.0/512 GB",
        "  n2  AAAAAAAA  8/8 h100  4/64 CPU  8.0/512 GB",
        "  rack-1 / s2",
        "  n3  BBBB····  4/8 h100  4/64 CPU  8.0/512 GB",
        "  n4  ××××××××  0/8 h100  0/64 CPU    0/512 GB",
        "      set aside for 10m00s: ECC error",
        "",
        "  A r-big  train  vision  16 GPU on 2 nodes",
        "  B r-mid  vit    nlp     4 GPU",
    ]


def test_nodes_that_can_be_taken_away_are_marked() -> None:
    assert draw(view(node("n1").model_copy(update={"spot": True})))[1].endswith("/512 GB  spot")


def test_tpus_are_called_so() -> None:
    there = view(node("t1", run("r-big", range(4)), gpus=4, gpu_type="tpu:v5e"), node("t2", gpus=4, gpu_type="tpu:"))
    lines = draw(there)
    assert lines[0].startswith("hpc  2 nodes, 0 of 4 TPU, 4 of 4 TPU v5e,")
    assert lines[1].split()[2:5] == ["4/4", "TPU", "v5e"]
    assert "4 TPU" in lines[-1]
    many = [node(f"t{number}", gpus=4, gpu_type="tpu:v5e") for number in range(100)]
    assert any("TPU free" in line for line in draw(view(*many)))


def test_parts_of_gpus() -> None:
    shared = node("n1", run("r-a", [0], part=0.5), run("r-b", [0], part=0.25), run("r-c", [1], part=0.5), gpus=3)
    assert draw(view(shared))[1].split()[1] == "+b·"


def test_a_run_without_a_block_has_no_letter() -> None:
    lines = draw(view(node("n1", run("r-a", range(2)), run("r-cpu", cpus=8))))
    assert lines[1].split()[1] == "AA······"
    assert lines[-2:] == ["  A r-a    train  vision  2 GPU", "    r-cpu  train  vision  8 CPU"]


def test_nodes_without_gpus_have_blocks_of_cpus() -> None:
    laptop = node("me", run("r-a", cpus=1), run("r-b", cpus=0.5), gpus=0, cpus=4, engine="local")
    large = node("big", run("r-c", cpus=32), gpus=0, cpus=64, engine="local")
    lines = draw(view(laptop, large))
    assert lines[1].startswith("  big  AAAAAAAA········  ")
    assert lines[2].startswith("  me   BC··            ")
    crowded = node("me", *(run(f"r-{at}", cpus=0.1) for at in range(9)), gpus=0, cpus=2)
    assert draw(view(crowded))[1].split()[1] == "AB"


def test_engines_that_cannot_be_reached_are_named() -> None:
    def engine(name: str, nodes: int) -> EngineView:
        return EngineView(
            name=name, type="slurm", nodes=nodes, unreachable_since=NOW - 200, message="refused", seen_at=1
        )

    lines = draw(view(node("n1"), engines=[engine("hpc", 1), engine("edge", 0)]))
    assert lines[1] == "  cannot be reached since 3m20s: refused"
    assert lines[-2:] == ["edge", "  cannot be reached since 3m20s: refused"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_many_nodes_are_a_character_each(width: int) -> None:
    nodes = [
        node(f"n{at:04}", *([run(f"r-{at}", range(at % 9))] if at % 9 else []), topology=[f"rack{at // 64:02}"])
        for at in range(1250)
    ]
    lines = draw(view(*nodes, asides=[aside("n0001", "a fan that " + "rattles " * 20)]), width=width)
    assert len(lines) < 80
    assert all(cells(line) <= width for line in lines)
    assert lines[1].startswith("  rack00  ·×▂▃▄▅▆▇█·▁▂▃")
    assert sum(line.startswith("  rack") for line in lines) == 20
    assert any("× n0001 set aside for 10m00s: a fan" in line for line in lines)
    assert lines[-1] == "  1,099 more runs"


def test_all_of_them_can_be_shown_one_by_one() -> None:
    nodes = [node(f"n{at:03}") for at in range(100)]
    assert len(draw(view(*nodes))) < 20
    assert len(draw(view(*nodes), everything=True)) == 101


def test_too_many_switches_are_drawn_by_rack() -> None:
    nodes = [node(f"n{at:03}", topology=[f"rack{at // 64}", f"s{at // 4:03}"]) for at in range(256)]
    assert [line.split()[0] for line in draw(view(*nodes)) if "rack" in line] == ["rack0", "rack1", "rack2", "rack3"]


def test_it_fits_and_colours_change_nothing_but_colours() -> None:
    runs = [run(f"r-{at:08}", [at % 8], name="a name that goes on and on" * 3) for at in range(50)]
    nodes = [node(f"a-node-with-a-very-long-name-{at}", runs[at], gpus=8) for at in range(40)]
    there = view(*nodes, asides=[aside(nodes[3].name, "reasons " * 30)])
    plain, painted = draw(there), draw(there, colours=True)
    assert all(cells(line) <= 80 for line in plain)
    assert [_PAINTED.sub("", line) for line in painted] == plain
    assert plain[-1] == "  # 4 more runs"

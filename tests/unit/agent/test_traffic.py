"""Disks and network of a node, from the kernel's tables."""

from __future__ import annotations

from pathlib import Path

from windlass.agent.traffic import Rates, Traffic


class Machine:
    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        (self.proc / "net").mkdir(parents=True)
        for name in ("sda", "nvme0n1", "dm-0", "loop0"):
            (self.sys / "block" / name).mkdir(parents=True)

    def write(self, *, read: int, written: int, received: int, sent: int) -> None:
        row = "8 0 {} 10 0 {} 1 20 0 {} 1 0 0 0 0"
        disks = [row.format(name, read, written) for name in ("sda", "sda1", "nvme0n1", "dm-0", "loop0")]
        (self.proc / "diskstats").write_text("\n".join(disks) + "\n")
        counters = "{} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0"
        lines = ["Inter-|   Receive", " face |bytes", "    lo: " + counters.format(10**9, 10**9)]
        lines += ["  eth0: " + counters.format(received, sent), "  ib0:" + counters.format(received, sent)]
        (self.proc / "net" / "dev").write_text("\n".join(lines) + "\n")

    def traffic(self, folder: Path) -> Traffic:
        return Traffic(str(folder), proc=str(self.proc), sys=str(self.sys))


def test_whole_disks_and_what_leaves_the_machine_count_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    machine.write(read=1000, written=2000, received=10_000, sent=20_000)
    traffic = machine.traffic(tmp_path)
    assert set(traffic.sample(100.0)) == {"disk_used_percent"}  # rates need two looks
    machine.write(read=1010, written=2040, received=10_500, sent=20_100)
    found = traffic.sample(102.0)
    assert 0 < found.pop("disk_used_percent") <= 100
    assert found == {
        "disk_read_bytes_per_s": 2 * 10 * 512 / 2,
        "disk_write_bytes_per_s": 2 * 40 * 512 / 2,
        "network_in_bytes_per_s": 2 * 500 / 2,
        "network_out_bytes_per_s": 2 * 100 / 2,
    }


def test_what_is_made_of_devices_does_not_count_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.sys / "class" / "net" / "eth0" / "device").mkdir(parents=True)
    (machine.sys / "class" / "net" / "ib0").mkdir()  # stands for a bond
    machine.write(read=0, written=0, received=10_000, sent=20_000)
    traffic = machine.traffic(tmp_path)
    traffic.sample(100.0)
    machine.write(read=0, written=0, received=11_000, sent=20_200)
    found = traffic.sample(101.0)
    assert (found["network_in_bytes_per_s"], found["network_out_bytes_per_s"]) == (1_000, 200)


def test_what_the_machine_does_not_tell_is_left_out(tmp_path: Path) -> None:
    traffic = Traffic(str(tmp_path / "gone"), proc=str(tmp_path / "proc"), sys=str(tmp_path / "sys"))
    assert [traffic.sample(1.0), traffic.sample(2.0)] == [{}, {}]
    machine = Machine(tmp_path)
    (machine.proc / "diskstats").write_text("nonsense\n")
    (machine.proc / "net" / "dev").write_text("eth0: x\n")
    assert [traffic.sample(3.0), traffic.sample(4.0)] == [{}, {}]


def test_a_counter_that_begins_anew_has_no_rate() -> None:
    rates = Rates()
    assert rates.of({"bytes": 100}, 1.0) == {}
    assert rates.of({"bytes": 50, "other": 5}, 2.0) == {}
    assert rates.of({"bytes": 60, "other": 5}, 4.0) == {"bytes_per_s": 5.0, "other_per_s": 0.0}
    assert rates.of({"bytes": 70}, 4.0) == {}  # no time has passed

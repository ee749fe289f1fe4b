"""How the supervisors of a gang find each other over a folder that all of them see: each leaves its address there and
waits for the others'. No rank starts before all supervisors are up."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any, Mapping

from . import layout
from .command import CannotStart
from .files import read_json, write_json

_LOOK_EVERY_S = 0.05
_RENEW_EVERY_S = 1.0


def meet(plan: dict[str, Any], port: int, wakeup_fd: int) -> bool:
    """Complete the plan with every node's address and the first one's port. False if it was told to end meanwhile.
    Raises CannotStart if some node does not come."""
    folder = str(plan["rendezvous"]["folder"])
    own = os.path.join(folder, "%d.json" % plan["node_rank"])
    card = {"address": own_address(os.environ), "port": port}
    os.makedirs(folder, exist_ok=True)
    deadline = time.monotonic() + float(plan["rendezvous"]["patience_s"])
    renew_at = 0.0
    missing = list(range(plan["nnodes"]))
    cards: dict[int, dict[str, Any]] = {}
    while missing:
        now = time.monotonic()
        if now > deadline:
            names = ", ".join(plan["node_names"][rank] for rank in missing)
            raise CannotStart("no sign of %s after %g s" % (names, plan["rendezvous"]["patience_s"]))
        if now >= renew_at:
            # Writing to the folder also makes a network file system look at it anew.
            write_json(own, card)
            renew_at = now + _RENEW_EVERY_S
        for rank in missing:
            found = read_json(os.path.join(folder, "%d.json" % rank))
            if found is not None:
                cards[rank] = found
        missing = [rank for rank in missing if rank not in cards]
        if os.path.exists(os.path.join(plan["node_dir"], layout.STOP)):
            return False
        if missing and select.select([wakeup_fd], [], [], _LOOK_EVERY_S)[0]:
            return False
    plan["node_addrs"] = [str(cards[rank]["address"]) for rank in range(plan["nnodes"])]
    plan["master_addr"] = plan["node_addrs"][0]
    plan["master_port"] = int(cards[0]["port"])
    return True


def own_address(environ: Mapping[str, str]) -> str:
    """Where other nodes reach this one: as told, or the side of it that faces the gang's first node."""
    told = environ.get("WINDLASS_NODE_ADDR")
    if told:
        return told
    first = environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if first:
        with socket.socket(socket.AF_INET6 if ":" in first else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((first, 9))  # sends nothing: it only chooses a route
                return str(probe.getsockname()[0])
            except OSError:
                pass  # no route by that name; the host's own will have to do
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return socket.gethostname()

"""What a checkpoint holds, and how it is taken from and given back to the live objects.

Tensors are kept under names that mean the same in every plan: `model.<name>` and `optimizer.state.<name>.<kind>`.
All that is no tensor is one pickle per rank, `rank.<number>`: options of the optimizer, schedule, loss scale, random
generators, position in the data.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from windlass.core.errors import InvalidInput
from windlass.job.checkpoint.apart import is_apart
from windlass.job.parallel.optimizer import Optimizer
from windlass.job.parallel.parallelize import Parallel
from windlass.job.randomness import random_state, set_random_state
from windlass.job.session import session

MODEL, OPTIMIZER, RANK = "model.", "optimizer.state.", "rank."
_POSITIONS = (
    ", so nobody knows its position; options: one that reads by job.order, "
    "loader=job.loader(DataLoader(dataset, batch_sampler=job.order(len(dataset), 256))), one with a state of its own "
    "(as torchdata's StatefulDataLoader), or none: what is read begins anew then"
)


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


@runtime_checkable
class OfReader(Protocol):
    """What has a part besides that differs between those who read different parts of the data."""

    def load_of_reader(self, state_dict: Any | None) -> None:
        """The state of whoever read what this rank reads now; None if the data was divided otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Which part of the data a rank reads."""

    number: int
    count: int


class TrainingState:
    """The objects of one rank that are saved together."""

    def __init__(
        self,
        model: Parallel | nn.Module,
        optimizer: Optimizer | torch.optim.Optimizer | None,
        others: Mapping[str, Stateful],
        loader: Stateful | None,
    ) -> None:
        if not isinstance(model, Parallel | nn.Module):
            raise InvalidInput(f"model is {type(model).__name__}; give a module, or what job.parallelize returned")
        parallel = model if isinstance(model, Parallel) else None
        self._parts = parallel.parts if parallel is not None else [_plain(model)]  # type: ignore[arg-type]
        self._scale = parallel.loss_scale if parallel is not None else None
        self.plan = str(parallel.plan) if parallel is not None else ""
        self.optimizer = optimizer.inner if isinstance(optimizer, Optimizer) else optimizer
        if self.optimizer is not None and not hasattr(self.optimizer, "param_groups"):
            raise InvalidInput(f"optimizer is {type(optimizer).__name__}; give job.optimizer's, or one of torch's")
        if any(one.__name__ == "ZeroRedundancyOptimizer" for one in type(self.optimizer).__mro__):
            raise InvalidInput(
                "optimizer is a ZeroRedundancyOptimizer, which does not say where its state is; divide it by a plan "
                "instead, with job.parallelize and job.optimizer and `plan: shard=N,zero=1`, or give torch's own"
            )
        self._has_whole_model = parallel is None or parallel.plan.pipeline == 1
        self.is_ours = parallel is not None and isinstance(optimizer, Optimizer)
        mine = session()
        self._rank, self._world_size = (0, 1) if is_apart() else (mine.rank, mine.world_size)
        self._reader = (
            Reader(number=parallel.data_rank, count=parallel.data_world)
            if parallel is not None
            else Reader(number=self._rank, count=self._world_size)
        )
        self._others = dict(others)
        self._loader = loader
        self._made: dict[str, Tensor] = {}  # tensors of `state_dict` that are none of the model's own
        self._extra: dict[str, Any] = {}  # what is no tensor there: the extra state of modules
        self._made_room = False
        self._taken: list[tuple[Tensor, str, Any]] = []  # from parameters, when room was made
        for name, one in (*self._others.items(), ("loader", loader)):
            if one is not None and not isinstance(one, Stateful):
                raise InvalidInput(_stateless(name, one))

    # ---- taking ----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The live tensors themselves, by their names in a checkpoint."""
        model = self._model()
        live = {id(one) for part in self._parts for one in (*part.parameters(), *part.buffers())}
        self._made = {name: tensor for name, tensor in model.items() if id(tensor) not in live}
        return self._tensors(model, self._optimizer_states(_names_of(model)))

    def take(self) -> tuple[dict[str, Tensor], bytes]:
        """The tensors, and everything else of this rank."""
        model = self._model()
        names = _names_of(model)
        states = self._optimizer_states(names)
        return self._tensors(model, states), self._rest(names, states)

    def _tensors(self, model: Mapping[str, Tensor], states: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
        found = {MODEL + name: tensor for name, tensor in model.items()}
        for name, state in states.items():
            for kind, value in state.items():
                if isinstance(value, Tensor):
                    found[f"{OPTIMIZER}{name}.{kind}"] = value
        return found

    def _rest(self, names: Mapping[int, str], all_states: Mapping[str, Mapping[str, Any]]) -> bytes:
        states = {
            name: {kind: value for kind, value in state.items() if not isinstance(value, Tensor)}
            for name, state in all_states.items()
        }
        return pickle.dumps(
            {
                "options": self._options(names),
                "groups": self._groups(names),
                "states": {name: state for name, state in states.items() if state},
                "scale": None if self._scale is None else (self._scale.value, self._scale.good_steps),
                "extra": self._extra,
                "others": {name: one.state_dict() for name, one in self._others.items()},
                "reader": (self._reader.number, self._reader.count),
                "loader": None if self._loader is None else self._loader.state_dict(),
                "random": random_state(),
                "plan": self.plan,
            }
        )

    def _model(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        self._extra = {}
        for part in self._parts:
            for name, value in part.state_dict(keep_vars=True).items():
                if isinstance(value, Tensor):
                    found[name] = value
                else:
                    self._extra[name] = value
        return found

    def _give_modules(self, blobs: Sequence[Mapping[str, Any]]) -> None:
        """What is no parameter or buffer of theirs but made of them, by hooks of `state_dict`, or their extra state:
        they take it by the same way."""
        names = self._extra.keys()
        known = {name: blob["extra"][name] for blob in reversed(blobs) for name in names & blob.get("extra", {}).keys()}
        if not known and not self._made:
            return
        given = {**known, **self._made}
        for part in self._parts:
            state = part.state_dict(keep_vars=True)
            part.load_state_dict({name: given.get(name, value) for name, value in state.items()}, strict=False)

    def _names(self) -> dict[int, str]:
        return _names_of(self._model())

    def _optimizer_states(self, names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
        if self.optimizer is None:
            return {}
        found = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if state := self.optimizer.state.get(parameter):
                    found[_name_of(parameter, names)] = state
        return found

    def _options(self, names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
        """Of every parameter those of its group: groups themselves differ between plans."""
        if self.optimizer is None:
            return {}
        found = {}
        for group in self.optimizer.param_groups:
            options = {name: _on_host(value) for name, value in group.items() if name != "params"}
            for parameter in group["params"]:
                found[_name_of(parameter, names)] = options
        return found

    def _groups(self, names: Mapping[int, str]) -> dict[str, int]:
        if self.optimizer is None:
            return {}
        groups = enumerate(self.optimizer.param_groups)
        return {_name_of(parameter, names): number for number, group in groups for parameter in group["params"]}

    # ---- giving back -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def make_room(self, saved: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
        """Give a new optimizer the tensors of its state, which it would else make at its first step; not their values.

        `saved`: shape and type of every tensor in the checkpoint. InvalidInput if the model lacks some of its own.
        """
        self._refuse_left_over(saved)
        optimizer = self.optimizer
        if optimizer is None or optimizer.state:
            return
        kinds: dict[str, dict[str, tuple[torch.Size, torch.dtype]]] = {}
        for name, what in saved.items():
            if name.startswith(OPTIMIZER):
                parameter_name, _, kind = name.removeprefix(OPTIMIZER).rpartition(".")
                kinds.setdefault(parameter_name, {})[kind] = what
        names = self._names()
        self._made_room = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for kind, (shape, dtype) in kinds.get(_name_of(parameter, names), {}).items():
                    optimizer.state[parameter][kind] = _room(parameter, kind, shape, dtype, group)
                    if kind in parameter.__dict__:  # what an optimizer takes from its parameter at its first step
                        self._taken.append((parameter, kind, parameter.__dict__.pop(kind)))

    def _refuse_left_over(self, saved: Iterable[str]) -> None:
        """As torch's own loading does. A stage of a pipeline cannot tell what is for others."""
        if not self._has_whole_model:
            return
        here = {MODEL + name for name in self._model()}
        lacking = sorted({name for name in saved if name.startswith(MODEL)} - here)
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise InvalidInput(
                f"the checkpoint has a tensor {lacking[0]!r}{more} that the model has not: it was saved from another "
                "model; give this run another folder for its checkpoints, or the model that it began with"
            )

    def undo_room(self) -> None:
        """The optimizer is as new again: what was to be loaded does not fit."""
        if self._made_room and self.optimizer is not None:
            self.optimizer.state.clear()
            for parameter, kind, value in self._taken:
                parameter.__dict__[kind] = value
            self._made_room = False
            self._taken.clear()

    def asks_for(self, world_size: int) -> set[int]:
        """The ranks whose blobs `give_back` may want, of so many that saved."""
        if self.optimizer is not None or self._loader is not None:
            return set(range(world_size))  # which of them know a parameter is not seen before they are read
        return {0, self._rank} & set(range(world_size))

    def give_back(self, blob_of: Callable[[int], Mapping[str, Any] | None], world_size: int) -> None:
        """All but the tensors. `blob_of` a rank that saved: what its `rest` was."""
        self._made_room = False  # it holds what was saved now
        self._taken.clear()
        first = blob_of(0)
        assert first is not None
        blobs = self._give_options(first, (blob_of(rank) for rank in range(1, world_size)))
        if self._scale is not None and first["scale"] is not None:
            self._scale.value, self._scale.good_steps = first["scale"]
        mine = blob_of(self._rank) if self._rank < world_size else None
        if mine is not None and (mine["plan"] != self.plan or world_size != self._world_size):
            mine = None  # it was another part of the training
        self._give_modules([mine or first, *blobs])
        for name, one in self._others.items():
            if name in first["others"]:
                regroups = isinstance(one, torch.optim.lr_scheduler.LRScheduler)
                its_own = (mine or first)["others"].get(name, first["others"][name])
                one.load_state_dict(self._regrouped(name, one, blobs) if regroups else its_own)
                if isinstance(one, OfReader):
                    one.load_of_reader(self._of_reader(name, blob_of, world_size))
        self._tell_of_others(first["others"])
        self._give_position(blob_of, world_size)
        if mine is not None:
            set_random_state(mine["random"])

    def _tell_of_others(self, saved: Mapping[str, Any]) -> None:
        new, gone = sorted(self._others.keys() - saved.keys()), sorted(saved.keys() - self._others.keys())
        said = [f"{', '.join(new)} was not saved, and begins anew"] if new else []
        said += [f"{', '.join(gone)} was saved, and nobody takes it"] if gone else []
        if said and session().is_main:
            session().alert("checkpoint-others", f"the checkpoint is of another script: {'; '.join(said)}")

    def _give_options(self, first: Mapping[str, Any], more: Iterator[Any]) -> list[Mapping[str, Any]]:
        """The blobs that together know all parameters of this rank: with a pipeline, each rank saved its own."""
        blobs = [first]
        if self.optimizer is None:
            return blobs
        names = self._names()
        options: dict[str, Any] = dict(first["options"])
        states: dict[str, Any] = dict(first["states"])
        while not set(self._groups(names)) <= set(options):
            blob = next(more, None)
            if blob is None:
                break  # the optimizer has parameters that it had not when it was saved
            blobs.append(blob)
            options.update(blob["options"])
            states.update(blob["states"])
        for group in self.optimizer.param_groups:
            known: dict[str, Any] = next(
                (options[n] for p in group["params"] if (n := _name_of(p, names)) in options), {}
            )
            for name, value in known.items():
                if isinstance(group.get(name), Tensor):
                    group[name].copy_(value)
                else:
                    group[name] = value
            for parameter in group["params"]:
                self.optimizer.state[parameter].update(states.get(_name_of(parameter, names), {}))
        return blobs

    def _regrouped(self, name: str, scheduler: Stateful, blobs: list[Mapping[str, Any]]) -> dict[str, Any]:
        """A schedule has lists with one value for each of the optimizer's groups, and another plan has other groups."""
        state: dict[str, Any] = dict(blobs[0]["others"][name])
        before = 1 + max(blobs[0]["groups"].values(), default=0)
        first_of_group = {number: parameter for parameter, number in reversed(self._groups(self._names()).items())}
        if len(first_of_group) == before:
            return state
        for key, live in scheduler.state_dict().items():
            saved = state.get(key)
            if not (isinstance(live, list) and isinstance(saved, list)):
                continue
            if len(live) == len(first_of_group) and len(saved) == before:
                known = ((blob, first_of_group[number]) for number in sorted(first_of_group) for blob in blobs)
                state[key] = [blob["others"][name][key][blob["groups"][p]] for blob, p in known if p in blob["groups"]]
        return state

    def _of_reader(self, name: str, blob_of: Callable[[int], Mapping[str, Any] | None], world_size: int) -> Any | None:
        """Its own, where this rank read the same part before: several may."""
        own = [self._rank] if self._rank < world_size else []
        for rank in (*own, *range(world_size)):
            blob = blob_of(rank)
            if blob is not None and blob["reader"] == (self._reader.number, self._reader.count):
                return blob["others"].get(name)
        return None

    def _give_position(self, blob_of: Callable[[int], Mapping[str, Any] | None], world_size: int) -> None:
        if self._loader is None:
            return
        readers: dict[int, Any] = {}
        count = 0
        for rank in range(world_size):
            blob = blob_of(rank)
            assert blob is not None
            number, count = blob["reader"]
            readers.setdefault(number, blob["loader"])
        states = [readers[number] for number in sorted(readers)]
        if count == self._reader.count:
            if states[self._reader.number] is not None:
                self._loader.load_state_dict(states[self._reader.number])
        elif hasattr(self._loader, "load_state_dicts"):
            self._loader.load_state_dicts(states)  # it knows how to divide the rest anew
        elif all(pickle.dumps(state) == pickle.dumps(states[0]) for state in states) and states[0] is not None:
            self._loader.load_state_dict(states[0])
        else:
            session().alert(
                "data-position",
                f"the data was read by {count} readers and is now read by {self._reader.count}; "
                f"{type(self._loader).__name__} has no load_state_dicts, so it starts from its beginning",
            )


def _stateless(name: str, one: object) -> str:
    options = _POSITIONS if name == "loader" else ""
    return f"{name} is {type(one).__name__}, which has no state_dict and load_state_dict{options}"


def _plain(model: nn.Module) -> nn.Module:
    if isinstance(model, DistributedDataParallel):
        model = model.module
    inner = getattr(model, "_orig_mod", None)  # torch.compile's
    return inner if isinstance(inner, nn.Module) else model


def _room(parameter: Tensor, kind: str, shape: torch.Size, dtype: torch.dtype, group: Mapping[str, Any]) -> Tensor:
    if tuple(shape) == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype)  # divided over the ranks as the parameter is
    if isinstance(parameter, DTensor) and shape.numel() > 1:
        raise InvalidInput(
            f"the optimizer's {kind!r} has the shape {tuple(shape)} for a parameter of {tuple(parameter.shape)}, and "
            "how that is divided over ranks is not known; make a step with the optimizer before loading"
        )
    counts_on_device = group.get("fused") or group.get("capturable")
    device = parameter.device if shape.numel() > 1 or counts_on_device else "cpu"
    return torch.empty(shape, dtype=dtype, device=device)


def _names_of(model: Mapping[str, Tensor]) -> dict[int, str]:
    """Of tied parameters the first name."""
    names: dict[int, str] = {}
    for name, tensor in model.items():
        names.setdefault(id(tensor), name)
    return names


def _name_of(parameter: Tensor, names: Mapping[int, str]) -> str:
    try:
        return names[id(parameter)]
    except KeyError:
        raise InvalidInput(
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} that the model has not; "
            "give checkpoints() the model and the optimizer that was made for it"
        ) from None


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value

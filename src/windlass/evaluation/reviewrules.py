"""What names, people, questions and items of review queues may be, in MLflow's words. Pure; raises InvalidInput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.core.errors import InvalidInput

_LONGEST_NAME = 250
_LONGEST_USER = 250
_LONGEST_SCHEMA = 36
_LONGEST_ITEM = 50
_MOST_USERS = 10
_MOST_AT_ONCE = 10_000  # ids in one call: databases take some ten thousand values in a statement
_RESERVED = "default"  # the queue of whoever works without a name


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedQueue:
    name: str
    users: Sequence[str]
    schema_ids: Sequence[str]


def plain_user(user: str) -> str:
    """As it is compared with whoever gave an assessment."""
    return user.strip().lower()


def checked_queue(*, name: str, kind: str, users: Sequence[str], schema_ids: Sequence[str]) -> WantedQueue:
    wanted_users, wanted_schemas = checked_users(users), checked_schemas(schema_ids)
    if kind != "user":
        return WantedQueue(name=checked_name(name), users=wanted_users, schema_ids=wanted_schemas)
    name = _within(plain_user(name), "name", _LONGEST_NAME)
    if wanted_users and wanted_users != [name]:
        raise InvalidInput(
            "A user queue must have exactly one assigned user equal to its name;"
            f" got name={name!r} and users={wanted_users!r}."
        )
    if wanted_schemas:
        raise InvalidInput(
            "A user queue cannot have explicitly-attached schemas; it resolves to all of the experiment's label"
            " schemas."
        )
    return WantedQueue(name=name, users=[name], schema_ids=[])


def checked_name(name: str) -> str:
    """Of a queue that is nobody's own."""
    name = _within(name.strip(), "name", _LONGEST_NAME)
    if name.lower() == _RESERVED:
        raise InvalidInput(f"`{name}` is a reserved queue name and cannot be used for a custom queue.")
    return name


def checked_owner(owner: str) -> str:
    return _within(owner.strip(), "new_owner", _LONGEST_USER)


def checked_users(users: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(_within(plain_user(user), "user", _LONGEST_USER) for user in users))
    if len(found) > _MOST_USERS:
        raise InvalidInput(f"A review queue can have at most {_MOST_USERS} assigned users; got {len(found)}.")
    return found


def checked_schemas(schema_ids: Sequence[str]) -> list[str]:
    _check_count(schema_ids, "schema_ids")
    return list(dict.fromkeys(_within(one.strip(), "schema_id", _LONGEST_SCHEMA) for one in schema_ids))


def checked_items(item_ids: Sequence[str]) -> list[str]:
    if not item_ids:
        raise InvalidInput("`item_ids` must be a non-empty list; got [].")
    _check_count(item_ids, "item_ids")
    return list(dict.fromkeys(_within(one.strip(), "item_id", _LONGEST_ITEM) for one in item_ids))


def checked_actor(status: str, completed_by: str | None) -> str | None:
    """Who has dealt with an item; nobody with one that is pending."""
    by = None if completed_by is None else plain_user(completed_by)
    if status == "pending":
        if by is not None:
            raise InvalidInput("`completed_by` must not be set when reopening an item to `pending`.")
        return None
    if not by:
        raise InvalidInput(f"`completed_by` is required when setting status to `{status}`.")
    if len(by) > _LONGEST_USER:
        raise InvalidInput(f"`completed_by` must be at most {_LONGEST_USER} characters; got {len(by)}.")
    return by


def _check_count(ids: Sequence[str], field: str) -> None:
    if len(ids) > _MOST_AT_ONCE:
        raise InvalidInput(f"`{field}` must have at most {_MOST_AT_ONCE} entries; got {len(ids)}.")


def _within(value: str, field: str, longest: int) -> str:
    if not value:
        raise InvalidInput(f"`{field}` must be a non-empty string; got {value!r}.")
    if len(value) > longest:
        raise InvalidInput(f"`{field}` must be at most {longest} characters; got {len(value)}.")
    return value

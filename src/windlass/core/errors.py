"""The error tree. Every error a user can meet has a stable `code`, a message that names the value, the rule
and the options, and optionally a hint that says what to do next. HTTP statuses are chosen in `api.errors` alone.

    WindlassError
    ├── InvalidInput          what was given breaks a rule
    │   ├── InvalidDocument   ... in a file that people write; `problems` lists every broken rule
    │   │   ├── InvalidSpec       ... a run's spec
    │   │   └── InvalidConfig     ... the server's settings
    │   ├── CannotFit         ... asks for more than any node has
    │   └── TooLarge          ... is over a size limit
    ├── NotFound              no such thing; the hint names the nearest
    ├── Ambiguous             a short id matches several things
    ├── Conflict              the thing is in a state that forbids this
    │   ├── AlreadyExists     something else has that name
    │   ├── InvalidTransition a state change outside the table
    │   ├── IdempotencyMismatch  one key, two different requests
    │   └── QueueFull         as many runs wait as may
    ├── Gone                  it was there and is over for good
    ├── Unauthorized          no valid token
    ├── Unavailable           a part that is needed is away; trying again may help
    │   ├── ServerUnreachable ... the server itself, as seen from a client
    │   ├── StorageFull       ... the disk or database has no room left
    │   └── StoreRefused      ... an object store: no access, or no such bucket; trying again will not help
    ├── LaunchFailed          an engine could not start an attempt
    └── BadSeal               secrets cannot be sealed or opened with the key that is here
"""

from __future__ import annotations

from collections.abc import Sequence


class WindlassError(Exception):
    code = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(WindlassError):
    code = "invalid_input"


class InvalidDocument(InvalidInput):
    code = "invalid_document"

    def __init__(self, problems: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__("; ".join(problems), hint=hint)
        self.problems = tuple(problems)


class InvalidSpec(InvalidDocument):
    code = "invalid_spec"


class InvalidConfig(InvalidDocument):
    code = "invalid_config"


class CannotFit(InvalidInput):
    code = "cannot_fit"


class TooLarge(InvalidInput):
    code = "too_large"


class NotFound(WindlassError):
    code = "not_found"


class Ambiguous(WindlassError):
    code = "ambiguous"


class Conflict(WindlassError):
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class InvalidTransition(Conflict):
    code = "invalid_transition"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class QueueFull(Conflict):
    code = "queue_full"


class Gone(WindlassError):
    code = "gone"


class Unauthorized(WindlassError):
    code = "unauthorized"


class Unavailable(WindlassError):
    code = "unavailable"


class ServerUnreachable(Unavailable):
    code = "server_unreachable"


class StorageFull(Unavailable):
    code = "storage_full"


class StoreRefused(Unavailable):
    code = "store_refused"


class LaunchFailed(WindlassError):
    code = "launch_failed"


class BadSeal(WindlassError):
    code = "bad_seal"

"""What a store answers when it does not do as asked, as errors of ours: `translated`.

Its client raises one and the same error for most of it, so what the store itself has said is read from the text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from windlass.core.errors import NotFound, StorageFull, StoreRefused, Unavailable, WindlassError

_FULL = ("InsufficientStorage", "QuotaExceeded", "status code: 507")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
# Answers with other statuses that trying again does not change either.
_REFUSALS = ("ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed")
# Where the client of S3 looks for the machine's role when it has been given no keys.
_ROLE_OF_THE_MACHINE = ("169.254.169.254", "169.254.170.2")
_STATUS = re.compile(r"status code: (\d{3})")
_SAID = re.compile(r"<Code>([^<]+)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_CREDENTIALS = "in the environment of who asks (of a job: in its spec's `secrets`)"


@contextlib.contextmanager
def translated(name: str, thing: str = "") -> Iterator[None]:
    """The store's trouble is an error of ours; `thing` is what is asked for, if it may be missing. Retries lie behind
    it: the client has made them."""
    from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise trouble_of(name, str(error), status=404, thing=thing) from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise trouble_of(name, str(error), status=403) from error
    except (BaseError, OSError) as error:
        raise trouble_of(name, str(error) or type(error).__name__) from error


def trouble_of(name: str, text: str, *, status: int | None = None, thing: str = "") -> WindlassError:
    """`text`: what the client says. `status`: what the store answered, if the client knows; else it is in the text."""
    found = _STATUS.search(text)
    status = status or (int(found[1]) if found else None)
    if any(sign in text for sign in _FULL):
        return StorageFull(f"{name} has no room left: {brief(text)}")
    if any(sign in text for sign in _ROLE_OF_THE_MACHINE):
        return StoreRefused(
            f"there are no credentials for {name}: neither keys nor a role of the machine",
            hint=f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY {_CREDENTIALS}",
        )
    missing_bucket = any(sign in text for sign in _NO_BUCKET)
    if status == 404 and thing and not missing_bucket:
        return NotFound(f"there is no {thing}")
    if status == 404 or missing_bucket:
        return StoreRefused(f"{name} is not there: {brief(text)}", hint="make the bucket, or correct its name")
    if status in (401, 403) or any(sign in text for sign in _REFUSALS):
        hint = f"check the credentials {_CREDENTIALS}, and what they may do with the bucket"
        return StoreRefused(f"{name} refuses access: {brief(text)}", hint=hint)
    return Unavailable(f"{name} does not answer: {brief(text)}", hint="trying again may help")


def brief(text: str) -> str:
    """The client goes on for pages; what the store has said, or the first line that says something, is enough."""
    if said := _SAID.search(text):
        return f"{said[1]}: {said[2].rstrip('.')}" if said[2] else said[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "it says nothing"

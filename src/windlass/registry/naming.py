"""Rules for names, aliases and tags of the registry, in the words that MLflow's clients know. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping

from windlass.core.errors import InvalidInput
from windlass.core.storable import storable_text
from windlass.registry.types import PROMPT_TEXT_TAG

LONGEST_NAME = 256
LONGEST_KEY = 250
LONGEST_VALUE = 100_000
LONGEST_ALIAS = 255
LARGEST_VERSION = 2**31 - 1
LATEST = "latest"

_ALIAS = re.compile(r"[\w\-]*")
_NUMBER_AS_ALIAS = re.compile(r"[vV]\d+")
_KEY = re.compile(r"[/\w.\- :]*")


def check_name(name: str, parameter: str = "name") -> None:
    if not name.strip():
        raise InvalidInput(f"Missing value for required parameter '{parameter}'.")
    if "/" in name or ":" in name:
        raise InvalidInput(f"Invalid model name '{name}'. Names cannot contain '/' or ':'.")
    _check_path("name", name)
    _check_length(parameter, name, LONGEST_NAME)
    check_storable(parameter, name)


def check_alias(alias: str) -> None:
    if not alias:
        raise InvalidInput("Registered model alias name cannot be empty.")
    if not _ALIAS.fullmatch(alias):
        raise InvalidInput(
            f"Invalid alias name: '{alias}'. Names may only contain alphanumerics, underscores (_), and dashes (-)."
        )
    _check_length("Registered model alias name", alias, LONGEST_ALIAS)


def check_new_alias(alias: str) -> None:
    """Those with a meaning of their own are not given away."""
    check_alias(alias)
    if alias.lower() == LATEST:
        raise InvalidInput("'latest' alias name (case insensitive) is reserved.")
    if _NUMBER_AS_ALIAS.fullmatch(alias):
        raise InvalidInput(f"Version alias name '{alias}' is reserved.")


def check_tags(tags: Mapping[str, str]) -> None:
    for key, value in tags.items():
        check_tag(key, value)


def check_tag(key: str, value: str) -> None:
    check_key(key)
    _check_length("key", key, LONGEST_KEY)
    if key == PROMPT_TEXT_TAG and len(value) > LONGEST_VALUE:
        raise InvalidInput(f"Prompt text exceeds max length of {LONGEST_VALUE} characters.")
    _check_length("value", value, LONGEST_VALUE)
    check_storable("value", value)


def check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            f"Invalid value {json.dumps(key)} for parameter 'key' supplied: Names may only contain alphanumerics,"
            " underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and slashes (/)."
        )
    _check_path("key", key)


def read_version(text: str) -> int:
    """A number that no version can have stands for itself: there is none."""
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"Parameter 'version' must be an integer, got '{text}'.") from None


def version_of(digits: str) -> int:
    """Of however many digits: Python reads no number of some thousand, and no version has one of more than these."""
    return int(digits) if len(digits) <= len(str(LARGEST_VERSION)) else LARGEST_VERSION + 1


def check_storable(parameter: str, text: str) -> None:
    """PostgreSQL keeps no NUL in text; nor does either database keep halves of characters."""
    if storable_text(text) != text:
        raise InvalidInput(f"Invalid value for parameter '{parameter}': it has characters that cannot be stored.")


def _check_path(parameter: str, name: str) -> None:
    """Names may become paths, and two names must not become the same one."""
    plain = posixpath.normpath(name)
    if plain != name or plain == "." or plain.startswith(("..", "/")):
        raise InvalidInput(
            f"Invalid value {json.dumps(name)} for parameter '{parameter}' supplied: Names may be treated as files in"
            f" certain cases, and must not resolve to other names when treated as such. This name would resolve to"
            f" {plain!r}"
        )


def _check_length(parameter: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidInput(f"'{parameter}' exceeds the maximum length of {most} characters")

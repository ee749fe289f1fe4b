"""What a server answers, as objects: `read`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # most of what the command line does needs none of it
    from pydantic import BaseModel

Answer = TypeVar("Answer", bound="BaseModel")


def read(kind: type[Answer], answer: Any) -> Answer:
    """What a younger server says that we do not know is left out: servers are upgraded before laptops are."""
    return kind.model_validate(answer, extra="ignore")

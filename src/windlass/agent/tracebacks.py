"""Which frames of a traceback are the program's own. Pure."""

from __future__ import annotations

import re
from typing import Sequence

_LIBRARY = r"/(site|dist)-packages/|/lib(64)?/python\d|^<"
# Wherever they are: in a library's place, in the folder of an editable installation, in the code that a recipe brings.
_OURS = r"/windlass/(agent|blobs|client|core|job|planning|wire)/"
_RECIPES = "/windlass/job/recipes/"


def own_places(files: Sequence[str]) -> list[int]:
    """Places of the frames that are the program's own, by their files: no library's, and none of Windlass. A recipe is
    the program where nothing else is. Where all are of Windlass or of libraries, the former are, or else all."""
    foreign = [place for place, file in enumerate(files) if not re.search(_LIBRARY, file)]
    own = [place for place in foreign if not re.search(_OURS, files[place])]
    own = own or [place for place, file in enumerate(files) if _RECIPES in file]
    return own or foreign or list(range(len(files)))

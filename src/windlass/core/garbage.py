"""What a long-lived process has loaded, out of the way of collections of garbage: `set_aside`."""

from __future__ import annotations

import gc


def set_aside() -> None:
    """What is there now is never looked at again. Modules, routes and schemas stay as long as the process; each full
    collection would go through all of them, and make whoever is being answered wait for a tenth of a second."""
    gc.freeze()

"""`python -m windlass.server`: what `windlass up` runs in the background."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from windlass.core.errors import InvalidDocument, WindlassError
from windlass.core.home import default_home
from windlass.server.main import serve
from windlass.server.settings import Role, Settings


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m windlass.server", description="Run a Windlass server.")
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--config", type=Path, help="a config file; default config.yaml in the home folder")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--no-auth", action="store_true", help="no token needed; on loopback only")
    parser.add_argument("--role", choices=list(Role), help="answer requests, move runs, or both")
    given = parser.parse_args(arguments)
    try:
        settings = Settings.from_environ(
            os.environ,
            home=given.home.absolute(),
            config=given.config,
            host=given.host,
            port=given.port,
            auth=False if given.no_auth else None,
            role=Role(given.role) if given.role else None,
        )
        return serve(settings)
    except WindlassError as error:
        problems = error.problems if isinstance(error, InvalidDocument) else (error.message,)
        lines = [f"error: {problem}" for problem in problems] + ([f"hint: {error.hint}"] if error.hint else [])
        print("\n".join(lines), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

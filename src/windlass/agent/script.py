"""Running a script or module in a process that was forked from a warm interpreter as if `python` had started it.

Exceptions leave through the bottom of the stack: CPython itself turns them into tracebacks and exit codes.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import random
import runpy
import sys
import time
import types
from typing import Any, Sequence

from .quiet import settle_at_exit
from .stacksignal import listen
from .target import Target

_OUR_FOLDER = os.path.dirname(os.path.abspath(__file__))


def run_target(target: Target, argv: Sequence[str], program: str) -> None:
    """The last thing a warm rank does in our code. Its working folder, environment and files are set already."""
    sys.executable = os.path.abspath(program)
    if hasattr(sys, "orig_argv"):  # since 3.10
        sys.orig_argv[:] = list(argv)
    _open_streams(target.unbuffered)
    listen()
    settle_at_exit()
    _renew_inherited_state()
    _install_fresh_main()
    _forget_ourselves()
    try:
        if target.kind == "module":
            _run_module(target)
        else:
            _run_script(target)
    except SystemExit:
        raise
    except BaseException:
        _hide_our_frames()
        raise


def _run_script(target: Target) -> None:
    path = os.path.abspath(target.name)
    sys.argv[:] = [target.name, *target.args]
    _put_first_on_path(os.path.dirname(os.path.realpath(path)))
    namespace = sys.modules["__main__"].__dict__
    namespace["__file__"] = path
    namespace["__cached__"] = None
    namespace["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), namespace)


def _run_module(target: Target) -> None:
    sys.argv[:] = ["-m", *target.args]
    _put_first_on_path(os.getcwd())
    run: Any = vars(runpy)["_run_module_as_main"]  # what `python -m` itself calls
    run(target.name)


def _put_first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _install_fresh_main() -> None:
    old = sys.modules["__main__"].__dict__
    main = types.ModuleType("__main__")
    namespace = main.__dict__
    namespace["__loader__"] = importlib.machinery.BuiltinImporter
    if "__annotations__" in old:  # until 3.13 the interpreter makes it in advance
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    sys.modules["__main__"] = main


def _forget_ourselves() -> None:
    """Also the package that we are of: a script may bring one of that name, or another version of it."""
    package = __name__.partition(".")[0]
    for name in list(sys.modules):
        if name == package or name.startswith(package + "."):
            del sys.modules[name]


def _open_streams(unbuffered: bool) -> None:
    """New objects on the new files: line by line as on a terminal, also into a pipe, so that logs are live."""
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", sys.__stdout__, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", sys.__stderr__, unbuffered)  # type: ignore[misc]


def _stream(fd: int, name: str, old: Any, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
        line_buffering=not unbuffered,
        write_through=unbuffered,
    )
    stream.mode = "w"  # type: ignore[misc]
    return stream


def _renew_inherited_state() -> None:
    """What modules took from the launcher's process at import and a fresh process would have of its own."""
    time.tzset()
    random.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)
    spawn: Any = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(sys.executable)


def _hide_our_frames() -> None:
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            traceback = traceback.tb_next
        error.__traceback__ = traceback
        shown(kind, error, traceback)

    sys.excepthook = show

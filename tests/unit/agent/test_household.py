from __future__ import annotations

import subprocess
import sys
import textwrap


def test_a_child_never_takes_the_relays_signals_for_its_own() -> None:
    """One to stop that met it right after the fork would be lost, and the ranks never told."""
    program = """
        import os, signal, time
        from windlass.agent import household, ranks
        real, home = ranks.reset_signals, household.Household()
        pending, ready = os.pipe()

        def reset_late():
            os.write(ready, b"x")
            while signal.SIGTERM not in signal.sigpending():
                time.sleep(0.001)
            real()

        household.reset_signals = reset_late
        pid = home.start_aside(lambda: time.sleep(60))
        os.read(pending, 1)
        os.kill(pid, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert home.is_told_to_stop
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=30)

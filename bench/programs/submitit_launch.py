"""The submitting side of submitit: `submitit_launch.py TASKS SCRIPT FOLDER LOGS`, in a process of its own."""

import sys

import submitit


def task(script: str, folder: str) -> None:
    # In the task's own process, the quickest that submitit offers: no second interpreter.
    import runpy
    import sys

    sys.argv = [script, folder]
    runpy.run_path(script, run_name="__main__")


tasks, script, folder, logs = sys.argv[1:]
executor = submitit.LocalExecutor(folder=logs)
executor.update_parameters(tasks_per_node=int(tasks), timeout_min=5)
executor.submit(task, script, folder).results()

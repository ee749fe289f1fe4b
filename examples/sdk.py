"""Submit, follow and compare runs from Python.

python examples/sdk.py
"""

from pathlib import Path

import windlass

here = Path(__file__).parent
with windlass.Client() as client:  # the first submission starts the embedded server if none runs
    runs = [
        client.submit(script="hello.py", code=here / "hello", name=f"hello-{steps}", params={"steps": steps})
        for steps in (10, 20)
    ]
    for run in runs:
        run.wait()
        loss = run.metrics()["loss"]
        print(f"{run.name}: {run.state} with exit code {run.exit_code}, loss {loss.values[0]:.2f} -> {loss.last:.2f}")
        print("  last line:", run.logs(tail=1)[0].text)

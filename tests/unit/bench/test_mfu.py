"""Without a GPU the benchmark of training speed says so, rather than to be busy for hours."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench import mfu  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("arguments", "sizes"), [([], "124m, 350m, 1300m"), (["--size", "tiny", "--size", "124m"], "tiny, 124m")]
)
def test_without_a_gpu_sizes_that_need_one_are_refused(
    arguments: list[str], sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as refused:
        mfu.main(arguments)
    assert (
        refused.value.code
        == f"mfu: a GPU is needed for {sizes}, and PyTorch finds none; --size tiny shows that it runs"
    )

"""Classify images or rows of a table, data-parallel over all processes.

    windlass run --recipe classifier --nproc 2                          # digits drawn on the spot, in seconds
    windlass run --recipe classifier -p data=iris.csv -p label=species
    python -m windlass.job.recipes.classifier                           # alone

`data` is a CSV file with a header, a .npz file with `x` and `y` (and perhaps `x_test` and `y_test`), or a folder with
x.npy and y.npy (and perhaps x_test.npy and y_test.npy). x of two dimensions is a table; of three (height, width) or
four (with channels last), images. Reads from top to bottom: settings, data, model, accuracy, training.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from numpy.typing import NDArray
from torch import Tensor, nn

from windlass import job
from windlass.core.errors import InvalidInput
from windlass.core.settings import Count, NotNegative, Positive, Share, Whole
from windlass.job.parallel.parallelize import Parallel
from windlass.job.refusals import run_recipe
from windlass.job.settings import settings_of
from windlass.job.trainer import Callback, Fit
from windlass.job.weights import whole_weights

# ---- settings: from the run's params, with defaults that fit a laptop ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: str | None = None  # a .csv or .npz file, or a folder with x.npy and y.npy; null: digits drawn on the spot
    label: str | None = None  # the CSV column to predict; null: the last one
    held_out: Share = 0.1  # of the data, kept aside if it comes without a test part
    width: Count = 64  # of hidden layers; of the first convolution half of it
    epochs: Count = 5
    batch: Count = 64  # samples per step, of all processes together
    lr: Positive = 2e-3
    weight_decay: NotNegative = 0.01
    warmup: Whole = 20  # steps
    seed: Whole = 1  # of first weights, of what is kept aside, and of the order of samples


# ---- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs as they are fed: (N, features), or (N, channels, height, width); targets are 0, 1, 2, ..."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: list[str]


def load(config: Settings) -> Samples:
    x, y, x_test, y_test = read(config)
    if len(x) != len(y):
        raise InvalidInput(f"{len(x)} inputs and {len(y)} labels: there must be one label for each input")
    if x_test is None or y_test is None:
        order = np.random.default_rng(config.seed).permutation(len(x))
        cut = max(1, int(len(x) * config.held_out))
        if cut >= len(x):
            raise InvalidInput(
                f"{len(x)} samples, of which held_out={config.held_out:g} keeps {cut} aside, leave none to learn from"
            )
        x_test, y_test, x, y = x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]
    names, targets = np.unique(y, return_inverse=True)
    if unseen := sorted(set(y_test.tolist()) - set(names.tolist())):
        raise InvalidInput(f"the test part has labels that the rest has not: {unseen[:5]}")
    train, test = as_inputs(x), as_inputs(x_test)
    # Each column, or each colour, with mean 0 and spread 1 over the training part.
    over = [0] if train.dim() == 2 else [0, 2, 3]
    mean, spread = train.mean(over, keepdim=True), train.std(over, keepdim=True).clamp(min=1e-6)
    return Samples(
        x=(train - mean) / spread,
        y=torch.from_numpy(targets),
        x_test=(test - mean) / spread,
        y_test=torch.from_numpy(np.searchsorted(names, y_test)),
        classes=[str(name) for name in names],
    )


Arrays = tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.generic] | None, NDArray[np.generic] | None]


def read(config: Settings) -> Arrays:
    if config.data is None:
        return (*drawn_digits(4000, config.seed), *drawn_digits(500, config.seed + 1))
    path = Path(config.data)
    if not path.exists():
        raise InvalidInput(f"data is {config.data!r}, but there is no such file or folder")
    if path.is_dir():
        found = {part: np.load(file) for part in PARTS if (file := path / f"{part}.npy").exists()}
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            found = {part: archive[part] for part in PARTS if part in archive}
    elif path.suffix == ".csv":
        return (*read_csv(path, config.label), None, None)
    else:
        raise InvalidInput(f"data is {config.data!r}; options: a .csv file, a .npz file, a folder with x.npy and y.npy")
    if missing := {"x", "y"} - set(found):
        raise InvalidInput(f"{path} has no {' and no '.join(sorted(missing))}; it may have: {', '.join(PARTS)}")
    return found["x"], found["y"], found.get("x_test"), found.get("y_test")


PARTS = ("x", "y", "x_test", "y_test")


def read_csv(path: Path, label: str | None) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    with path.open(newline="") as file:
        reader = csv.reader(file)
        numbered = [(reader.line_num, row) for row in reader if row]
    if len(numbered) < 2:
        raise InvalidInput(f"{path} has {len(numbered)} lines, but must have a header and samples below it")
    (_, header), *rows = numbered
    label = label or header[-1]
    if label not in header:
        raise InvalidInput(f"{path} has no column {label!r}; columns: {', '.join(header)}")
    at = header.index(label)
    values = [_numbers(row, header, at, f"{path}:{line}") for line, row in rows]
    return np.array(values, dtype=np.float32), np.array([row[at] for _, row in rows])


def _numbers(row: list[str], header: list[str], label_at: int, where: str) -> list[float]:
    if len(row) != len(header):
        raise InvalidInput(f"{where} has {len(row)} cells, but the header has {len(header)}")
    try:
        return [float(cell) for column, cell in enumerate(row) if column != label_at]
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}; all columns but {header[label_at]!r} must be numbers") from None


def as_inputs(x: NDArray[np.generic]) -> Tensor:
    inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if inputs.dim() == 3:
        return inputs[:, None]  # one channel
    if inputs.dim() == 4:
        return inputs.permute(0, 3, 1, 2)
    if inputs.dim() != 2:
        raise InvalidInput(f"x has the shape {tuple(x.shape)}; options: (N, features), (N, H, W), (N, H, W, channels)")
    return inputs


def drawn_digits(count: int, seed: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Digits of seven strokes on 16×16 pixels: moved about, of varying brightness, and noisy."""
    upper, lower, across = slice(0, 6), slice(5, 11), slice(0, 6)
    # Top, upper left and right, middle, lower left and right, bottom; and which of them each digit has.
    places = ((0, across), (upper, 0), (upper, 5), (5, across), (lower, 0), (lower, 5), (10, across))
    strokes = (0o167, 0o022, 0o135, 0o133, 0o072, 0o153, 0o157, 0o122, 0o177, 0o173)  # seven bits, the top first
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = rng.normal(0.0, 0.25, (count, 16, 16)).astype(np.float32)
    for image, digit in zip(images, labels, strict=True):
        down, right = rng.integers(0, 6), rng.integers(0, 11)
        sheet = image[down : down + 11, right : right + 6]
        for lit, place in zip(f"{strokes[digit]:07b}", places, strict=True):
            if lit == "1":
                sheet[place] += rng.uniform(0.6, 1.2)
    return images, labels


class Batches:
    """This process's part of every batch, in another order every epoch. The last batch that is not full is left out."""

    def __init__(self, samples: Samples, config: Settings, parallel: Parallel) -> None:
        self.samples, self.batch, self.seed = samples, min(config.batch, len(samples.y)), config.seed
        # Fails here, with the numbers that would do, rather than with parts of different sizes.
        self.each = parallel.plan.check_batch(self.batch) * parallel.plan.accumulate
        self.part = parallel.data_rank
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.samples.y) // self.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(
            len(self.samples.y), generator=torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        )
        self.epoch += 1
        for number in range(len(self)):
            first = number * self.batch + self.part * self.each
            chosen = order[first : first + self.each]
            yield self.samples.x[chosen], self.samples.y[chosen]


# ---- model -----------------------------------------------------------------------------------------------------------


def table_model(features: int, classes: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes)
    )


def image_model(channels: int, classes: int, width: int) -> nn.Module:
    """Three convolutions, each seeing twice as far. Norms of groups, not of batches: each process has its own batch."""
    if width % 8:
        near = max(8, round(width / 8) * 8)
        raise InvalidInput(f"width is {width}, but must be a multiple of 8 for images, such as {near}")

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.GELU()]

    return nn.Sequential(
        *stage(channels, width // 2),
        *stage(width // 2, width),
        *stage(width, 2 * width),
        nn.AdaptiveAvgPool2d(2),  # images may have any size
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


def model_for(samples: Samples, width: int) -> nn.Module:
    make = table_model if samples.x.dim() == 2 else image_model
    return make(samples.x.shape[1], len(samples.classes), width)


# ---- accuracy --------------------------------------------------------------------------------------------------------


class Accuracy(Callback):
    """After every epoch, how much of the test part is right. Each process looks at a part of it."""

    def __init__(self, samples: Samples, batch: int, every: int) -> None:
        self.samples, self.batch, self.every = samples, batch, every
        self.accuracy = 0.0

    def stepped(self, fit: Fit) -> None:
        if fit.step % self.every == 0 or fit.step == fit.total:
            assert fit.meter is not None
            with fit.meter.pause():
                self.measure(fit)

    @torch.no_grad()
    def measure(self, fit: Fit) -> None:
        parallel, count = fit.parallel, len(self.samples.y_test)
        # The same number of batches everywhere, since some plans exchange weights in each. What is beyond the end is
        # read again from the front, and does not count.
        each = -(-count // parallel.data_world)
        places = torch.arange(each) + parallel.data_rank * each
        right = torch.zeros(2, device=parallel.device)
        for part in parallel.parts:
            part.eval()
        for first in range(0, each, self.batch):
            chosen = places[first : first + self.batch]
            real = (chosen < count).to(parallel.device)
            logits = parallel(self.samples.x_test[chosen % count].to(parallel.device)).float()
            targets = self.samples.y_test[chosen % count].to(parallel.device)
            right[0] += ((logits.argmax(1) == targets) & real).sum()
            right[1] += (F.cross_entropy(logits, targets, reduction="none") * real).sum()
        for part in parallel.parts:
            part.train()
        if parallel.data_world > 1:
            dist.all_reduce(right)
        self.accuracy, loss = (right / count).tolist()
        if job.is_main:
            job.log(fit.step, total=fit.total, test_accuracy=self.accuracy, test_loss=loss)
            print(f"step {fit.step}: {self.accuracy:.1%} of {count} right, loss {loss:.3f}", flush=True)


# ---- training --------------------------------------------------------------------------------------------------------


def main() -> float:
    """The share of the test part that is right at the end."""
    config = settings_of(Settings)
    job.init()
    torch.manual_seed(config.seed)  # the same first weights everywhere
    samples = load(config)
    model = model_for(samples, config.width)
    if job.is_main:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{len(samples.y):,} samples, {len(samples.classes)} classes, {size:,} parameters, plan {job.plan}")

    batch = min(config.batch, len(samples.y))
    an_epoch = len(samples.y) // batch
    accuracy = Accuracy(samples, batch, every=an_epoch)
    total = an_epoch * config.epochs

    def schedule(step: int) -> float:
        """A short warm-up, then straight down to nothing."""
        return min((step + 1) / max(1, config.warmup), 1.0, (total - step) / max(1, total - config.warmup))

    trainer = job.Trainer(
        epochs=config.epochs,
        schedule=schedule,
        batch=batch,
        checkpoints={} if job.session().keeps_checkpoints else None,
        callbacks=[accuracy],
    )
    fit = trainer.fit(
        model,
        lambda parallel: Batches(samples, config, parallel),
        loss=F.cross_entropy,
        optimizer=torch.optim.AdamW,
        lr=config.lr,
        weight_decay=config.weight_decay,
    )
    weights = whole_weights(fit.parallel)
    if weights is not None:
        torch.save({"weights": weights, "classes": samples.classes}, job.output_dir / "model.pt")
    return accuracy.accuracy


if __name__ == "__main__":
    run_recipe(main)

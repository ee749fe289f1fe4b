"""A small language model that learns to write from one text, byte by byte. Data-parallel over all processes.

    windlass run --file spec.yaml          # two processes, as the spec says
    torchrun --nproc-per-node 2 train.py   # the same script without Windlass
    python train.py                        # or alone

Reads from top to bottom: settings, data, model, saving, training, and a sample of what was learned. It saves with plain
`torch.save` every now and then; an attempt after the first goes on from there, to the same end.
"""

import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from windlass import job

# ---- settings: from the run's params, with defaults that fit a laptop ------------------------------------------------

STEPS = int(job.params.get("steps", 350))
BATCH = int(job.params.get("batch", 16))  # sequences per process and step
CONTEXT = int(job.params.get("context", 64))  # bytes the model looks back
WIDTH = int(job.params.get("width", 96))
LAYERS = int(job.params.get("layers", 3))
HEADS = 4
LR = float(job.params.get("lr", 3e-3))
WARMUP = 30
SAVE_EVERY = int(job.params.get("save_every", 100))
PACE_S = float(job.params.get("pace", 0))  # a rest after every step, to look on
SEED = job.seed if job.seed is not None else 1

torch.set_num_threads(1)  # one core a process
torch.manual_seed(SEED)  # the same first weights everywhere
distributed = "RANK" in os.environ and job.world_size > 1
if distributed:
    dist.init_process_group("gloo")

# ---- data: the bytes of a text; the last tenth is kept aside ---------------------------------------------------------

text = torch.tensor(list((Path(__file__).parent / "text.txt").read_bytes()))
cut = len(text) * 9 // 10
training, held_out = text[:cut], text[cut:]
draw = torch.Generator()


def turn_to(step: int) -> None:
    """What is drawn depends on the step and the process alone, so that a later attempt draws the same."""
    draw.manual_seed((SEED * 1_000_003 + step) * 1009 + job.rank)


def batch_of(source: Tensor, size: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(source) - CONTEXT, (size,), generator=draw)
    rows = torch.stack([source[start : start + CONTEXT + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


# ---- model: a decoder-only transformer -------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


plain = LanguageModel()
model = DistributedDataParallel(plain) if distributed else plain
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.05)
if job.is_main:
    size = sum(parameter.numel() for parameter in plain.parameters())
    print(f"{size:,} parameters, {len(training):,} bytes to learn from, {job.world_size} processes")

# ---- saving ----------------------------------------------------------------------------------------------------------

saved = Path(str(job.params.get("save_to") or job.output_dir)) / "last.pt"


def save(step: int) -> None:
    """Whole or not at all: a file that is being written has another name."""
    state = {"step": step, "model": plain.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, saved.with_suffix(".part"))
    saved.with_suffix(".part").replace(saved)


first = 0
if saved.exists():
    state = torch.load(saved)
    plain.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
    if job.is_main:
        print(f"going on after step {first}")

# ---- training --------------------------------------------------------------------------------------------------------


def lr_at(step: int) -> float:
    """A short warm-up, then half a cosine down to a tenth."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, STEPS - WARMUP))))


for step in range(first, STEPS):
    turn_to(step)
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    loss = loss_of(model, *batch_of(training, BATCH))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

    if step % 5 == 0 or step == STEPS - 1:
        mean = loss.detach().clone()
        if distributed:
            dist.all_reduce(mean)
            mean /= job.world_size
        if job.is_main:
            job.log(step + 1, total=STEPS, loss=mean, lr=lr_at(step))
    if job.is_main and (step % 50 == 0 or step == STEPS - 1):
        print(f"step {step + 1:4d}  loss {mean.item():.3f}")
    if job.is_main and (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
    time.sleep(PACE_S)

# ---- what was learned ------------------------------------------------------------------------------------------------

if job.is_main:
    plain.eval()
    turn_to(STEPS)
    with torch.no_grad():
        unseen = sum(loss_of(plain, *batch_of(held_out, 16)).item() for _ in range(4)) / 4
        job.log(STEPS, total=STEPS, held_out_loss=unseen)
        print(f"loss on text it has not seen: {unseen:.3f}")

        written = torch.tensor([list(b"The windlass ")])
        for _ in range(240):
            logits = plain(written[:, -CONTEXT:])[0, -1] / 0.7
            written = torch.cat([written, torch.multinomial(logits.softmax(-1), 1, generator=draw)[None]], dim=1)
        print("\n" + bytes(written[0].tolist()).decode(errors="replace"))
    torch.save(plain.state_dict(), job.output_dir / "model.pt")
    saved.unlink(missing_ok=True)  # nothing is left to go on with

if distributed:
    dist.destroy_process_group()

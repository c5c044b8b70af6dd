"""Train a small Transformer on Python's own source text, byte by byte: ``python examples/charlm.py``, or charlm.yaml.

Reports the loss (nats) and the bits per character on held-out text. The text is the standard library of the Python that
runs the script, so nothing has to be fetched; all workers of a job must run the same Python version.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

VOCABULARY = 256  # bytes
CONTEXT = 64  # bytes that the model sees at most
WIDTH, HEADS, LAYERS = 96, 4, 2


def windows(megabytes: float, held_out: float) -> tuple[TensorDataset, TensorDataset]:
    """Cut the standard library's modules into windows (n, CONTEXT + 1) of bytes; the last part is held out."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in modules)[: int(megabytes * 2**20)]
    count = len(text) // (CONTEXT + 1)
    table = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)
    test = int(count * held_out)
    return TensorDataset(table[: count - test]), TensorDataset(table[count - test :])


class Block(nn.Module):
    """One pre-LN layer: causal self-attention, then two linear layers, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x_bld: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, WIDTH) to the same shape; position i sees positions up to i."""
        batch, length, _ = x_bld.shape
        heads = self.qkv(self.norm_attention(x_bld)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_bld = x_bld + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x_bld + self.mlp(self.norm_mlp(x_bld))


class CharLM(nn.Module):
    """0.28 M parameters: bytes and their positions in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy (nats) of the bytes of `window` (batch, CONTEXT + 1), each given those before it."""
        given, wanted = window[:, :-1].long(), window[:, 1:].long()
        x_bld = self.tokens(given) + self.positions(torch.arange(given.shape[1], device=given.device))
        logits = self.head(self.norm(self.blocks(x_bld)))
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def summed_loss(model: nn.Module, window: torch.Tensor) -> float:
    """Loss of a batch, summed over its windows, as `Session.evaluate` wants it."""
    return float(model(window)) * len(window)


def main() -> None:
    """Train, and report loss and bits per character after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of source text, held-out part included")
    parser.add_argument("--batch-size", type=int, default=64, help="alone only; in a job its globalBatchSize")
    parser.add_argument("--seed", type=int, default=7, help="alone only; in a job its seed")
    options = parser.parse_args()
    train_set, test_set = windows(options.megabytes, held_out=0.05)

    session = heterotrain.join(batch_size=options.batch_size, seed=options.seed)
    model, optimizer, loader = session.prepare(CharLM(), torch.optim.AdamW, train_set, lr=3e-3, weight_decay=0.01)
    steps = options.epochs * -(-len(train_set) // session.batch_size)
    scheduler = session.schedule(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))
    for epoch in session.epochs(options.epochs):
        for (window,) in loader:
            loss = model(window)
            loss.backward()
            session.clip_grad_norm_(1.0)
            optimizer.step()
            scheduler.step()
        test_loss = session.evaluate(summed_loss, test_set, batch_size=64)
        bits = test_loss / math.log(2)
        session.report(loss=test_loss, bits_per_character=bits)
        print(f"epoch {epoch}: loss {test_loss:.3f}, {bits:.3f} bits per character", flush=True)


if __name__ == "__main__":
    main()

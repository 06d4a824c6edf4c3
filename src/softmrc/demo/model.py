"""What the demo trains: a small transformer that learns to add, on sums made up as it goes.

Everything follows from seeds, so two runs that differ in one bit differ because of the network.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

ALPHABET = "0123456789+=; "
LENGTH = 64
WIDTH = 128
HEADS = 4
LAYERS = 3
BATCH = 4


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.middle = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.join = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.project(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.middle(x))


class Adder(nn.Module):
    """Reads sums letter by letter and guesses each next one."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(DecoderBlock() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.guess = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.guess(self.last(self.blocks(self.letters(text) + self.places)))


def sums(step: int, rank: int) -> torch.Tensor:
    """A batch of lines like "17+25=42;8+90=98;…", as numbers of letters; one letter longer than the model reads."""
    generator = torch.Generator().manual_seed(step * 4096 + rank)
    rows = []
    for _ in range(BATCH):
        pairs = torch.randint(0, 100, (LENGTH // 6 + 1, 2), generator=generator).tolist()
        line = "".join(f"{a}+{b}={a + b};" for a, b in pairs)[: LENGTH + 1]
        rows.append([ALPHABET.index(letter) for letter in line.ljust(LENGTH + 1)])
    return torch.tensor(rows)


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

"""The model that the servers run, and the images that are sent to them.

The model is `Net` of ``examples/fashion_cnn.py``: trained here for some seconds, or read from a file that ``heterotrain
run`` or ``heterotrain export`` has written. Images are Fashion-MNIST's; without those files, on demand, scikit-learn's
digits, enlarged.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from fashion_cnn import DEVIATION, MEAN, Net, find_data, load

IMAGE_BYTES = 28 * 28
FASHION, DIGITS = "fashion", "digits"


@dataclass(frozen=True)
class Images:
    """Images as bytes (n, 28, 28), and their classes (n)."""

    pixels: torch.Tensor
    labels: torch.Tensor


def as_input(pixels: torch.Tensor) -> torch.Tensor:
    """Bytes (n, 28, 28) -> what `Net` takes: (n, 1, 28, 28), normalised as in its training."""
    return (pixels.to(torch.float32).unsqueeze(1) / 255 - MEAN) / DEVIATION


def read_images(kind: str) -> tuple[Images, Images]:
    """Images to train and to ask about. Exits with what to do if Fashion-MNIST is not there."""
    if kind == DIGITS:
        return _digits()
    folder = find_data(None)
    return _fashion(folder, "train"), _fashion(folder, "t10k")


def _fashion(folder: Path, part: str) -> Images:
    pixels, labels = load(folder, part).tensors
    return Images(((pixels.squeeze(1) * DEVIATION + MEAN) * 255).round().to(torch.uint8), labels)


def _digits() -> tuple[Images, Images]:
    """1,797 digits of 8 x 8: each pixel becomes 3 x 3, with a margin of 2. The last 300 are the ones to ask about."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    small = torch.from_numpy(raw.images).to(torch.float32) * (255 / 16)
    large = F.pad(small.repeat_interleave(3, 1).repeat_interleave(3, 2), (2, 2, 2, 2)).to(torch.uint8)
    labels = torch.from_numpy(raw.target).to(torch.int64)
    return Images(large[:-300], labels[:-300]), Images(large[-300:], labels[-300:])


def train(images: Images, count: int, seed: int = 7) -> nn.Module:
    """Train on the first `count` images, once each, in plain PyTorch."""
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    pixels, labels = images.pixels[:count], images.labels[:count]
    for chosen in torch.randperm(len(labels)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(as_input(pixels[chosen])), labels[chosen]).backward()
        optimizer.step()
    return model.eval()


def read_model(path: Path) -> nn.Module:
    """The model of a safetensors file."""
    model = Net()
    model.load_state_dict(load_file(path))
    return model.eval()


def write_model(model: nn.Module, path: Path) -> None:
    """As ``heterotrain export`` writes it."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)


@torch.inference_mode()
def classify(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Class of each image of bytes (n, 28, 28)."""
    return torch.cat([model(as_input(part)).argmax(1) for part in pixels.split(250)])

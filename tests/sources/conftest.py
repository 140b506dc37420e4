"""A folder with a user's model file, as it might lie in a project."""

from __future__ import annotations

from pathlib import Path

import pytest

MODEL = """
import torch
from torch import nn
from sibling import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)

    def forward(self, x, scale=None):
        y = self.linear(x)
        return y if scale is None else y * scale

def make():
    print("building")
    return Net()

def with_inputs():
    return Net(), (torch.ones(2, WIDTH),), {"scale": torch.full((1,), 2.0)}

def needs(width):
    return Net()

def fails():
    raise ValueError("no such weights")

def nonsense():
    return 3

def pair():
    return Net(), (torch.ones(2, WIDTH),)

def args_not_tuple():
    return Net(), torch.ones(2, WIDTH), {}

def kwargs_not_dict():
    return Net(), (), [1]

def module_missing():
    return "Net", (), {}

NET = Net()
SIZE = 3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, made the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "sibling.py").write_text("WIDTH = 16\n")
    (tmp_path / "broken.py").write_text("import torch\n\ndef make(:\n    pass\n")
    (tmp_path / "raises.py").write_text("import sibling\n\nx = 1 / 0\n")
    (tmp_path / "lacks.py").write_text("import sibling\nimport no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path

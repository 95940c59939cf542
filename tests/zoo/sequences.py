"""Recurrent and convolutional networks over time, and torch's own transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import signals
from .initial import seeded, settled


class Recurrent(nn.Module):
    """Two layers in both directions; a class from the mean over time."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 32)
        self.layers = kind(32, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.middle = nn.Linear(64, 64)
        self.head = nn.Linear(64, 8)

    def forward(self, series: Tensor) -> Tensor:
        inner, _ = self.layers(torch.tanh(self.enter(series)))
        return self.head(F.relu(self.middle(inner.mean(1))))


def lstm() -> nn.Module:
    return seeded(lambda: Recurrent(nn.LSTM))


def gru() -> nn.Module:
    return seeded(lambda: Recurrent(nn.GRU))


class BareLstm(nn.Module):
    """An LSTM with nothing before or behind it: no layer of it is one that INT8 is for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(6, 16, batch_first=True)

    def forward(self, series: Tensor) -> Tensor:
        return self.layers(series)[0]


def bare_lstm() -> nn.Module:
    return seeded(BareLstm)


class Dilated(nn.Module):
    """A gated, causal convolution with skips (WaveNet)."""

    def __init__(self, width: int, rate: int) -> None:
        super().__init__()
        self.rate = rate
        self.body = nn.Conv1d(width, 2 * width, 2, dilation=rate)
        self.out, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.body(F.pad(x, (self.rate, 0))).chunk(2, 1)
        y = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.out(y), self.skip(y)


class WaveNet(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, width, 1)
        self.layers = nn.ModuleList(Dilated(width, 2**index) for index in range(5))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 16, 1))

    def forward(self, signal: Tensor) -> Tensor:
        x, total = self.enter(signal), torch.zeros(())
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return self.head(total)


def wavenet() -> nn.Module:
    return seeded(WaveNet)


def _block(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm1d(outputs), nn.ReLU()]


def _signal_net() -> nn.Module:
    layers = [*_block(2, 24, 9, 2), *_block(24, 48, 5, 2), *_block(48, 64, 3, 2), *_block(64, 64, 3, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 12))


def signal_net() -> nn.Module:
    return settled(_signal_net, signals.calibration())


class Encoder(nn.Module):
    """torch's own TransformerEncoder over a series, with learned positions."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter = nn.Linear(6, width)
        self.positions = nn.Parameter(0.1 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 6)

    def forward(self, series: Tensor) -> Tensor:
        x = self.enter(series) + self.positions[: series.shape[1]]
        return self.head(self.layers(x))


def encoder() -> nn.Module:
    return seeded(Encoder)

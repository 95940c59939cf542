"""Convolutional classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import images_32, images_64
from .initial import settled


def conv_norm(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: nn.Module | None = None
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act or nn.Identity())


class Classifier(nn.Module):
    """Some features, averaged over the image, and a linear layer."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).mean((2, 3)))


# ResNet


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(inputs, width, act=nn.ReLU()),
            conv_norm(width, width, 3, stride, act=nn.ReLU()),
            conv_norm(width, 4 * width),
        )
        same = inputs == 4 * width and stride == 1
        self.skip = nn.Identity() if same else conv_norm(inputs, 4 * width, stride=stride)
        self.last_norm = self.body[-1][1]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(inputs, outputs, 3, stride, act=nn.ReLU()), conv_norm(outputs, outputs, 3)
        )
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else conv_norm(inputs, outputs, stride=stride)
        self.last_norm = self.body[-1][1]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def _stem(width: int) -> list[nn.Module]:
    return [conv_norm(3, width, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]


def _resnet50() -> nn.Module:
    layers, width = _stem(64), 64
    for stage, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(width, inner, 2 if stage and not block else 1))
            width = 4 * inner
    return Classifier(nn.Sequential(*layers), width, 1000)


def resnet50() -> nn.Module:
    return settled(_resnet50, images_64.calibration())


def _resnet18() -> nn.Module:
    layers, width = _stem(16), 16
    for stage, outputs in enumerate((16, 32, 64, 128)):
        layers += [Basic(width, outputs, 2 if stage else 1), Basic(outputs, outputs, 1)]
        width = outputs
    return Classifier(nn.Sequential(*layers), width, 100)


def resnet18() -> nn.Module:
    return settled(_resnet18, images_32.calibration())


# VGG


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for stage in ((16,), (32,), (64, 64), (128, 128), (128, 128)):
        for outputs in stage:
            layers += [conv_norm(width, outputs, 3, act=nn.ReLU())]
            width = outputs
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(width, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 100)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def vgg11() -> nn.Module:
    return settled(_vgg, images_32.calibration())


# Depthwise convolutions


class Inverted(nn.Module):
    """MobileNetV2's block; with ``squeeze`` that of MobileNetV3 and EfficientNet."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, grow: int, act: type[nn.Module], squeeze: bool = False
    ) -> None:
        super().__init__()
        inner = inputs * grow
        self.grow = conv_norm(inputs, inner, act=act()) if grow > 1 else nn.Identity()
        self.depthwise = conv_norm(inner, inner, 3, stride, groups=inner, act=act())
        self.squeeze = Squeeze(inner, max(inputs // 4, 4)) if squeeze else nn.Identity()
        self.project = conv_norm(inner, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.squeeze(self.depthwise(self.grow(x))))
        return x + y if self.residual else y


class Squeeze(nn.Module):
    """Channels weighted by what their means tell (squeeze and excitation)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, inner, 1),
            nn.SiLU(),
            nn.Conv2d(inner, width, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x)


_PLAN = ((1, 16, 1, 1), (4, 24, 2, 2), (4, 32, 2, 2), (4, 64, 2, 2), (4, 96, 1, 2))


def _inverted(act: type[nn.Module], *, squeeze: bool, width: int = 16) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, width, 3, 2, act=act())]
    for grow, outputs, stride, blocks in _PLAN:
        for block in range(blocks):
            layers.append(Inverted(width, outputs, 1 if block else stride, grow, act, squeeze))
            width = outputs
    layers.append(conv_norm(width, 256, act=act()))
    return Classifier(nn.Sequential(*layers), 256, 100)


def mobilenet_v2() -> nn.Module:
    return settled(partial(_inverted, nn.ReLU6, squeeze=False), images_64.calibration())


def mobilenet_v3() -> nn.Module:
    return settled(partial(_inverted, nn.Hardswish, squeeze=True), images_64.calibration())


def efficientnet() -> nn.Module:
    return settled(partial(_inverted, nn.SiLU, squeeze=True), images_64.calibration())


class ConvNextBlock(nn.Module):
    """7 x 7 depthwise, normalised over channels, and a perceptron; scaled before it is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(0.2 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        return x + (self.scale * self.body(self.norm(y))).permute(0, 3, 1, 2)


def _convnext() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 4, 4)]
    for width in (32, 64):
        layers += [ConvNextBlock(width), ConvNextBlock(width), nn.GroupNorm(1, width)]
        layers.append(nn.Conv2d(width, 2 * width, 2, 2))
    return Classifier(nn.Sequential(*layers), 128, 100)


def convnext() -> nn.Module:
    return settled(_convnext, images_64.calibration())


# Concatenations


class Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.narrow = conv_norm(inputs, 4 * growth, act=nn.ReLU())
        self.body = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(self.narrow(F.relu(self.norm(x))))], 1)


def _densenet() -> nn.Module:
    layers, width = _stem(24), 24
    for stage in range(3):
        for _ in range(4):
            layers.append(Dense(width, 12))
            width += 12
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if stage < 2:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return Classifier(nn.Sequential(*layers), width, 100)


def densenet() -> nn.Module:
    return settled(_densenet, images_64.calibration())


class Branches(nn.Module):
    """Several ways through, joined along the channels."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def _fire(inputs: int, inner: int, outputs: int) -> nn.Module:
    narrow = nn.Sequential(nn.Conv2d(inputs, inner, 1), nn.ReLU())
    ways = Branches(nn.Conv2d(inner, outputs, 1), nn.Conv2d(inner, outputs, 3, padding=1))
    return nn.Sequential(narrow, ways, nn.ReLU())


def _squeezenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _fire(32, 16, 32),
        _fire(64, 16, 32),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _fire(64, 32, 64),
        _fire(128, 32, 64),
        nn.Conv2d(128, 100, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def squeezenet() -> nn.Module:
    return settled(_squeezenet, images_64.calibration())


def _inception_block(inputs: int, widths: Sequence[int]) -> nn.Module:
    one, three, five, pooled = widths
    act = nn.ReLU()
    return Branches(
        conv_norm(inputs, one, act=act),
        nn.Sequential(conv_norm(inputs, three // 2, act=act), conv_norm(three // 2, three, 3, act=act)),
        nn.Sequential(conv_norm(inputs, five // 2, act=act), conv_norm(five // 2, five, 5, act=act)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(inputs, pooled, act=act)),
    )


def _googlenet() -> nn.Module:
    layers = [*_stem(32), _inception_block(32, (16, 32, 8, 8)), _inception_block(64, (32, 64, 16, 16))]
    layers += [nn.MaxPool2d(3, 2, 1), _inception_block(128, (48, 96, 24, 24))]
    return Classifier(nn.Sequential(*layers), 192, 100)


def googlenet() -> nn.Module:
    return settled(_googlenet, images_64.calibration())


class ShuffleBlock(nn.Module):
    """Half of the channels pass; then both halves are shuffled into each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(
            conv_norm(half, half, act=nn.ReLU()),
            conv_norm(half, half, 3, groups=half),
            conv_norm(half, half, act=nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat([left, self.body(right)], 1), 2)


def _shufflenet() -> nn.Module:
    layers = _stem(32)
    for width in (32, 64):
        layers += [ShuffleBlock(width), ShuffleBlock(width), conv_norm(width, 2 * width, 3, 2, act=nn.ReLU())]
    return Classifier(nn.Sequential(*layers), 128, 100)


def shufflenet() -> nn.Module:
    return settled(_shufflenet, images_64.calibration())

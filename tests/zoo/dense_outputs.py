"""Networks whose outputs are images, or boxes and scores all over the image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .classifiers import Basic, conv_norm
from .data import images_16, images_32, images_64, noisy_images
from .initial import settled

# U-Net


class Twice(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        first = conv_norm(inputs, outputs, 3, act=nn.ReLU())
        super().__init__(*first, *conv_norm(outputs, outputs, 3, act=nn.ReLU()))


class UNet(nn.Module):
    """Down and up again, with skips that are concatenated."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = Twice(3, width), Twice(width, 2 * width)
        self.bottom = Twice(2 * width, 4 * width)
        self.raise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2 = Twice(4 * width, 2 * width)
        self.raise1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up1 = Twice(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.down1(image)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.bottom(F.max_pool2d(second, 2))
        second = self.up2(torch.cat([self.raise2(deep), second], 1))
        return self.head(self.up1(torch.cat([self.raise1(second), first], 1)))


def unet() -> nn.Module:
    return settled(UNet, images_32.calibration())


# Segmentation with dilated convolutions and interpolation


class Segmenter(nn.Module):
    """DeepLab's idea: several dilations side by side, and the mean of the image; resized at the end."""

    def __init__(self, width: int = 32, classes: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(3, width, 3, 2, act=nn.ReLU()), Basic(width, width, 1), Basic(width, 2 * width, 2)
        )
        self.ways = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * width, width, 3, padding=rate, dilation=rate, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            )
            for rate in (1, 2, 4)
        )
        self.mean = nn.Sequential(nn.Conv2d(2 * width, width, 1), nn.ReLU())
        self.head = nn.Sequential(conv_norm(4 * width, width, act=nn.ReLU()), nn.Conv2d(width, classes, 1))

    def forward(self, image: Tensor) -> Tensor:
        x = self.body(image)
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        logits = self.head(torch.cat([*(way(x) for way in self.ways), mean], 1))
        return F.interpolate(logits, size=image.shape[2:], mode="bilinear", align_corners=False)


def segmenter() -> nn.Module:
    return settled(Segmenter, images_32.calibration())


# Detection


class Detector(nn.Module):
    """Boxes in pixels (to 640) and scores (0 to 1) of each place on three levels; NMS stays outside."""

    def __init__(self, classes: int = 8, width: int = 24) -> None:
        super().__init__()
        self.stem = conv_norm(3, width, 3, 2, act=nn.SiLU())
        self.levels = nn.ModuleList(
            nn.Sequential(conv_norm(width, width, 3, 2, act=nn.SiLU()), Basic(width, width, 1))
            for _ in range(3)
        )
        self.merge = nn.ModuleList(conv_norm(2 * width, width, 3, act=nn.SiLU()) for _ in range(2))
        self.boxes = nn.Conv2d(width, 4, 3, padding=1)
        self.scores = nn.Conv2d(width, classes, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, found = self.stem(image), []
        for level in self.levels:
            x = level(x)
            found.append(x)
        for index in (1, 0):
            larger = F.interpolate(found[index + 1], scale_factor=2.0, mode="nearest")
            found[index] = self.merge[index](torch.cat([found[index], larger], 1))
        boxes = torch.cat([self.boxes(x).flatten(2) for x in found], 2).transpose(1, 2)
        scores = torch.cat([self.scores(x).flatten(2) for x in found], 2).transpose(1, 2)
        return boxes.sigmoid() * 640, (scores - 2).sigmoid()


class OneTensor(nn.Module):
    """The same with boxes and scores in one tensor, as YOLO's exports have it."""

    def __init__(self) -> None:
        super().__init__()
        self.detector = Detector()

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat(self.detector(image), 2)


def detector() -> nn.Module:
    return settled(Detector, images_64.calibration())


def mixed_head() -> nn.Module:
    return settled(OneTensor, images_64.calibration())


# Images from images


class Larger(nn.Module):
    """Three times the size, by shuffling channels into pixels (ESPCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.PReLU(32),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.PReLU(32),
            nn.Conv2d(32, 27, 3, padding=1),
            nn.PixelShuffle(3),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.body(image) + F.interpolate(image, scale_factor=3.0, mode="bicubic")


def larger() -> nn.Module:
    return settled(Larger, images_32.calibration())


class Autoencoder(nn.Module):
    """A variational autoencoder's middle, without the noise: the mean goes to the decoder."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            conv_norm(3, 16, 3, 2, act=nn.LeakyReLU(0.2)),
            conv_norm(16, 32, 3, 2, act=nn.LeakyReLU(0.2)),
            nn.Flatten(),
        )
        self.mean, self.spread = nn.Linear(32 * 16, size), nn.Linear(32 * 16, size)
        self.start = nn.Linear(size, 32 * 16)
        self.decode = nn.Sequential(
            nn.Unflatten(1, (32, 4, 4)),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.BatchNorm2d(16),
            nn.ELU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner = self.encode(image)
        mean = self.mean(inner)
        return self.decode(self.start(mean)), mean, F.softplus(self.spread(inner))


def autoencoder() -> nn.Module:
    return settled(Autoencoder, images_16.calibration())


class TimedBlock(nn.Module):
    """GroupNorm, SiLU, convolution, and what the step adds."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Denoiser(nn.Module):
    """A diffusion U-Net: embedded step, GroupNorm, and attention in the middle."""

    def __init__(self, width: int = 16, times: int = 32) -> None:
        super().__init__()
        self.times = times
        self.embed = nn.Sequential(nn.Linear(times, times), nn.SiLU(), nn.Linear(times, times))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = TimedBlock(width, width, times)
        self.lower = nn.Conv2d(width, width, 3, 2, 1)
        self.middle = TimedBlock(width, 2 * width, times)
        self.attend = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up = TimedBlock(3 * width, width, times)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        half = self.times // 2
        rates = torch.exp(-9.2 * torch.arange(half, dtype=torch.float32) / half)
        angles = step[:, None].float() * rates
        time = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        wide = self.down(self.first(image), time)
        deep = self.middle(self.lower(wide), time)
        tokens = deep.flatten(2).transpose(1, 2)
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        deep = tokens.transpose(1, 2).reshape(deep.shape)
        deep = F.interpolate(deep, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([deep, wide], 1), time))


def denoiser() -> nn.Module:
    return settled(Denoiser, noisy_images.calibration())

"""The architectures: where each is made, what it takes and gives, and what it cannot become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import DataType, Extent, TensorSpec


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One network.

    Attributes:
        title: What the table calls it.
        source: Module of this package and function that makes it: ``classifiers:vgg11``.
        data: Module of this package and instance in it that makes its inputs: ``data:images_64``.
        inputs: Input -> dtype and shape.
        outputs: Names of its outputs.
        dims: Dynamic dimension -> smallest, commonest and largest size.
        batch_dim: What Triton may batch over; None where rows are not independent.
        refused: Precision -> words of the reason why it cannot have it.
        quick: Whether it is run in the normal tests.
        metric: Module of this package and function that judges it; None: by the tolerances alone.
        drops: Precision -> largest loss of the metric.
    """

    title: str
    source: str
    data: str
    inputs: Mapping[str, tuple[str, tuple[Extent, ...]]]
    outputs: tuple[str, ...]
    dims: Mapping[str, tuple[int, int, int]] = field(default_factory=lambda: {"batch": (1, 4, 8)})
    batch_dim: str | None = "batch"
    refused: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    metric: str | None = None
    drops: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function that makes it."""
        return self.source.partition(":")[2]

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Its inputs as ``tt.yaml`` would declare them."""
        return tuple(
            TensorSpec(name=name, dtype=DataType.parse(dtype), shape=shape)
            for name, (dtype, shape) in self.inputs.items()
        )

    @property
    def dim_ranges(self) -> dict[str, Dim]:
        """Its dynamic dimensions."""
        return {n: Dim(name=n, min=low, opt=opt, max=high) for n, (low, opt, high) in self.dims.items()}


def _image(size: int, name: str = "image") -> dict[str, tuple[str, tuple[Extent, ...]]]:
    return {name: ("fp32", ("batch", 3, size, size))}


def _signal(name: str, *shape: Extent) -> dict[str, tuple[str, tuple[Extent, ...]]]:
    return {name: ("fp32", ("batch", *shape))}


_TEXT: dict[str, tuple[str, tuple[Extent, ...]]] = {
    "input_ids": ("int64", ("batch", "seq")),
    "attention_mask": ("int64", ("batch", "seq")),
}
_SEQ = {"batch": (1, 4, 8), "seq": (2, 16, 48)}


def _classifier(title: str, name: str, size: int = 64, *, quick: bool = False) -> Architecture:
    return Architecture(
        title=title,
        source=f"classifiers:{name}",
        data=f"data:images_{size}",
        inputs=_image(size),
        outputs=("logits",),
        quick=quick,
    )


def _text(title: str, name: str, *outputs: str, quick: bool = False) -> Architecture:
    return Architecture(
        title=title,
        source=f"transformers_models:{name}",
        data="data:sentences",
        inputs=_TEXT,
        outputs=outputs,
        dims=_SEQ,
        quick=quick,
    )


_CLASSIFIERS = (
    _classifier("ResNet-50", "resnet50"),
    _classifier("ResNet-18, narrow", "resnet18", 32, quick=True),
    _classifier("VGG-11 with batch norm", "vgg11", 32),
    _classifier("MobileNetV2 (depthwise)", "mobilenet_v2"),
    _classifier("MobileNetV3 (depthwise, squeeze and excitation, hard swish)", "mobilenet_v3"),
    _classifier("EfficientNet (depthwise, squeeze and excitation, SiLU)", "efficientnet"),
    _classifier("ConvNeXt (7 x 7 depthwise, LayerNorm)", "convnext"),
    _classifier("DenseNet", "densenet"),
    _classifier("SqueezeNet", "squeezenet"),
    _classifier("GoogLeNet", "googlenet"),
    _classifier("ShuffleNet", "shufflenet"),
)

_DENSE_OUTPUTS = (
    Architecture(
        title="U-Net",
        source="dense_outputs:unet",
        data="data:images_32",
        inputs=_image(32),
        outputs=("logits",),
    ),
    Architecture(
        title="DeepLab (dilated, resized)",
        source="dense_outputs:segmenter",
        data="data:images_32",
        inputs=_image(32),
        outputs=("logits",),
    ),
    Architecture(
        title="Detector: boxes, scores; NMS outside",
        source="dense_outputs:detector",
        data="data:images_64",
        inputs=_image(64),
        outputs=("boxes", "scores"),
    ),
    Architecture(
        title="Detector: boxes beside scores in one tensor",
        source="dense_outputs:mixed_head",
        data="data:images_64",
        inputs=_image(64),
        outputs=("found",),
    ),
    Architecture(
        title="Super-resolution (pixel shuffle, bicubic)",
        source="dense_outputs:larger",
        data="data:images_32",
        inputs=_image(32),
        outputs=("larger",),
    ),
    Architecture(
        title="Variational autoencoder",
        source="dense_outputs:autoencoder",
        data="data:images_16",
        inputs=_image(16),
        outputs=("again", "mean", "spread"),
    ),
    Architecture(
        title="Diffusion U-Net (GroupNorm, attention, step)",
        source="dense_outputs:denoiser",
        data="data:noisy_images",
        inputs=_image(16) | {"step": ("int64", ("batch",))},
        outputs=("noise",),
    ),
)

_TRANSFORMERS = (
    _text("BERT", "bert", "last_hidden_state", "pooler_output", quick=True),
    _text("RoBERTa, classifier", "roberta_classifier", "logits"),
    _text("DistilBERT", "distilbert", "last_hidden_state"),
    _text("GPT-2 without cache", "gpt2", "logits"),
    _text("Llama without cache", "llama", "logits"),
    _text("T5 encoder", "t5_encoder", "last_hidden_state"),
    Architecture(
        title="Mamba",
        source="transformers_models:mamba",
        data="data:plain_sentences",
        inputs={"input_ids": _TEXT["input_ids"]},
        outputs=("last_hidden_state",),
        dims=_SEQ,
        refused={"export": "'seq' stands in the graph as a constant.*as of a loop in Python"},
    ),
    Architecture(
        title="ViT",
        source="transformers_models:vit",
        data="data:pixels_32",
        inputs=_image(32, "pixel_values"),
        outputs=("logits",),
    ),
    Architecture(
        title="Swin",
        source="transformers_models:swin",
        data="data:pixels_64",
        inputs=_image(64, "pixel_values"),
        outputs=("logits",),
    ),
    Architecture(
        title="SegFormer",
        source="transformers_models:segformer",
        data="data:pixels_64",
        inputs=_image(64, "pixel_values"),
        outputs=("logits",),
    ),
    Architecture(
        title="CLIP",
        source="transformers_models:clip",
        data="data:captions",
        inputs=_TEXT | _image(32, "pixel_values"),
        outputs=("text_embeds", "image_embeds"),
        dims=_SEQ,
    ),
    Architecture(
        title="Whisper encoder",
        source="transformers_models:whisper_encoder",
        data="data:spectra",
        inputs=_signal("input_features", 40, 64),
        outputs=("last_hidden_state",),
    ),
)

_SEQUENCES = (
    Architecture(
        title="LSTM, two layers, both directions",
        source="sequences:lstm",
        data="data:series",
        inputs=_signal("series", "time", 6),
        outputs=("logits",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
    ),
    Architecture(
        title="GRU, two layers, both directions",
        source="sequences:gru",
        data="data:series",
        inputs=_signal("series", "time", 6),
        outputs=("logits",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
    ),
    Architecture(
        title="LSTM, nothing but the layer",
        source="sequences:bare_lstm",
        data="data:series",
        inputs=_signal("series", "time", 6),
        outputs=("hidden",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
        refused={"int8": "no layer that can run in INT8"},
        quick=True,
    ),
    Architecture(
        title="WaveNet (causal, gated, dilated)",
        source="sequences:wavenet",
        data="data:signals",
        inputs=_signal("signal", 2, "time"),
        outputs=("logits",),
        dims={"batch": (1, 4, 8), "time": (40, 64, 128)},
    ),
    Architecture(
        title="1-D convolutions over signals",
        source="sequences:signal_net",
        data="data:signals",
        inputs=_signal("signal", 2, 128),
        outputs=("logits",),
    ),
    Architecture(
        title="torch.nn.TransformerEncoder",
        source="sequences:encoder",
        data="data:series",
        inputs=_signal("series", "time", 6),
        outputs=("next",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
    ),
)

_STRUCTURES = (
    Architecture(
        title="Graph network (gather, scatter)",
        source="structures:graph_net",
        data="data:graphs",
        inputs={"nodes": ("fp32", ("nodes", 12)), "edges": ("int64", (2, "edges"))},
        outputs=("logits",),
        dims={"nodes": (4, 20, 64), "edges": (5, 60, 200)},
        batch_dim=None,
        quick=True,
    ),
    Architecture(
        title="DLRM (embeddings, products of pairs)",
        source="structures:recommender",
        data="data:clicks",
        inputs={"counts": ("fp32", ("batch", 13)), "categories": ("int64", ("batch", 8))},
        outputs=("score",),
    ),
    Architecture(
        title="PointNet",
        source="structures:point_net",
        data="data:clouds",
        inputs=_signal("points", "points", 3),
        outputs=("logits",),
        dims={"batch": (1, 4, 8), "points": (8, 64, 128)},
    ),
    Architecture(
        title="MLP-Mixer",
        source="structures:mixer",
        data="data:images_32",
        inputs=_image(32),
        outputs=("logits",),
    ),
    Architecture(
        title="Mixture of experts (top-k)",
        source="structures:experts",
        data="data:series",
        inputs=_signal("series", "time", 6),
        outputs=("next",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
    ),
    Architecture(
        title="Two ways, chosen by the input (If)",
        source="structures:two_ways",
        data="data:single_series",
        inputs=_signal("series", "time", 6),
        outputs=("state",),
        dims={"batch": (1, 4, 8), "time": (2, 24, 64)},
        batch_dim=None,
    ),
)

ARCHITECTURES = (*_CLASSIFIERS, *_DENSE_OUTPUTS, *_TRANSFORMERS, *_SEQUENCES, *_STRUCTURES)

MINILM = Architecture(
    title="all-MiniLM-L6-v2, real weights",
    source="minilm:embedder",
    data="minilm:texts",
    inputs=_TEXT | {"token_type_ids": _TEXT["input_ids"]},
    outputs=("embedding",),
    dims={"batch": (1, 8, 16), "seq": (2, 24, 64)},
    metric="minilm:agreement",
    drops={"fp16": 0.01, "int8": 0.03},
)
"""Not one of the others: its weights come from a package, see ``minilm.py``."""

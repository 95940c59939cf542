"""Models of the transformers package, small, from configurations; weights are random."""

from __future__ import annotations

from typing import Any

from torch import nn

from .initial import seeded

_SPREAD = 0.12
"""Of weights, 1/sqrt(width). The usual 0.02 is for larger widths: here it would leave layers without
any effect on what passes them by, and so without any error."""

_TEXT: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "initializer_range": _SPREAD,
}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
_IMAGE: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "initializer_range": _SPREAD,
}


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return seeded(lambda: BertModel(BertConfig(**_TEXT)))


def roberta_classifier() -> nn.Module:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return seeded(lambda: RobertaForSequenceClassification(RobertaConfig(**_TEXT, num_labels=5)))


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=1000,
        dim=64,
        n_layers=3,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=64,
        initializer_range=_SPREAD,
    )
    return seeded(lambda: DistilBertModel(config))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}
    config = GPT2Config(**sizes, initializer_range=_SPREAD, **_ENDS)
    return seeded(lambda: GPT2LMHeadModel(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_TEXT, num_key_value_heads=2, **_ENDS)
    return seeded(lambda: LlamaForCausalLM(config))


def t5_encoder() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=1000, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4)
    return seeded(lambda: T5EncoderModel(config))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return seeded(lambda: ViTForImageClassification(ViTConfig(**_IMAGE, num_labels=10)))


def swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
        initializer_range=_SPREAD,
    )
    return seeded(lambda: SwinForImageClassification(config))


def segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        decoder_hidden_size=64,
        num_labels=6,
        initializer_range=_SPREAD,
    )
    return seeded(lambda: SegformerForSemanticSegmentation(config))


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config=_TEXT | {"bos_token_id": 1, "eos_token_id": 999}, vision_config=_IMAGE, projection_dim=32
    )
    return seeded(lambda: CLIPModel(config))


def whisper_encoder() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=1000,
        num_mel_bins=40,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        max_source_positions=32,
        init_std=_SPREAD,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return seeded(lambda: WhisperModel(config).get_encoder())


def mamba() -> nn.Module:
    """Return a model whose layers go through a sequence in a loop of Python, where no GPU is."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=1000, hidden_size=32, num_hidden_layers=2, state_size=8, use_cache=False)
    return seeded(lambda: MambaModel(config))

"""Architectures that are taken from source to FP16 and INT8, without downloads; see catalogue.py."""

"""Batched exact full tokenization on a GPU: CUDA sources, and a host behind the encoder's face."""

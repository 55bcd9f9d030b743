"""Tilewright: describe a GPU operation, get one CUDA kernel file that runs from PyTorch."""

__version__ = "0.1.0"

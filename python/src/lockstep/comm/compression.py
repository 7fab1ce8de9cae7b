"""Smaller numbers on the way: DistributedOptimizer(..., compression=Compression.fp16)."""

from __future__ import annotations

from typing import Any, Tuple


class _None:
    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class _To:
    """Floats go over as a smaller kind and are added in float32; other dtypes as they are."""

    dtype = ""

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        if hasattr(tensor, "data_ptr"):
            import torch

            if not tensor.dtype.is_floating_point:
                return tensor, None
            return tensor.to(getattr(torch, cls.dtype)), tensor.dtype
        if tensor.dtype.kind != "f" or cls.dtype == "bfloat16":  # NumPy itself has no bfloat16
            return tensor, None
        return tensor.astype(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        if context is None:
            return tensor
        return tensor.to(context) if hasattr(tensor, "data_ptr") else tensor.astype(context)


class _Fp16(_To):
    dtype = "float16"


class _Bf16(_To):
    dtype = "bfloat16"


class Compression:
    none = _None
    fp16 = _Fp16
    bf16 = _Bf16

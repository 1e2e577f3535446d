"""Attention for torch tensors: `attention` as `fa.attention`, and torch's own signature.

from fa_kernels.integrations.torch import attention, scaled_dot_product_attention
"""

from __future__ import annotations

from fa_kernels.integrations.differentiable import attention
from fa_kernels.integrations.sdpa import scaled_dot_product_attention

__all__ = ["attention", "scaled_dot_product_attention"]

"""FlashAttention Lab: attention kernels, their traffic models and measurements, for notebooks.

`import fa_kernels as fa`. Needs NumPy alone; CuPy, torch, plotly and ipywidgets load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fa_kernels import units
from fa_kernels.attention import attention, attention_backward
from fa_kernels.block_mask import BlockMask
from fa_kernels.device import device as data_sheet
from fa_kernels.dropout import dropout_keep
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import session
from fa_kernels.tiling import Tiling
from fa_kernels.trace import trace_row
from fa_kernels.variants import ALGORITHMS, VARIANTS

if TYPE_CHECKING:
    from fa_kernels.decode_problem import DecodeProblem as DecodeProblem
    from fa_kernels.decoding import decode as decode

__version__ = "0.1.0"

#: Names loaded on first use, since they need more than NumPy or more time than an import may take:
#: what `fa.<name>` stands for.
_LAZY = {
    "decode": ("fa_kernels.decoding", "decode"),
    "DecodeProblem": ("fa_kernels.decode_problem", "DecodeProblem"),
    "app": ("fa_kernels.widgets.app.presenter", "app"),
    "explorer": ("fa_kernels.widgets.explorer", "explorer"),
    "check_traffic": ("fa_kernels.widgets.checks", "check_traffic"),
    "story": ("fa_kernels.widgets.story", "story"),
    "theta_law": ("fa_kernels.widgets.theta_law", "theta_law"),
    "lower_bound": ("fa_kernels.widgets.lower_bound", "lower_bound"),
    "stepper": ("fa_kernels.widgets.stepper", "stepper"),
    "softmax_failures": ("fa_kernels.widgets.softmax_failures", "softmax_failures"),
    "merge_check": ("fa_kernels.widgets.merge_check", "merge_check"),
    "numerics": ("fa_kernels.widgets.numerics", "numerics"),
    "trace_table": ("fa_kernels.widgets.trace_table", "trace_table"),
    "traffic_ways": ("fa_kernels.widgets.traffic_ways", "traffic_ways"),
    "check_dram": ("fa_kernels.widgets.dram_check", "check_dram"),
    "loop_order": ("fa_kernels.widgets.loop_order", "loop_order"),
    "crossing": ("fa_kernels.widgets.crossing", "crossing"),
    "o_drift": ("fa_kernels.widgets.o_drift", "o_drift"),
    "saved_memory": ("fa_kernels.widgets.saved_memory", "saved_memory"),
    "recompute_cost": ("fa_kernels.widgets.recompute_cost", "recompute_cost"),
    "check_backward": ("fa_kernels.widgets.backward_check", "check_backward"),
    "checkpointing": ("fa_kernels.widgets.checkpointing", "checkpointing"),
    "gradient_check": ("fa_kernels.widgets.gradient_check", "gradient_check"),
    "dropout_mask": ("fa_kernels.widgets.dropout_mask", "dropout_mask"),
    "rung_reader": ("fa_kernels.widgets.rung_reader", "rung_reader"),
    "resources": ("fa_kernels.widgets.resources", "resources"),
    "instruction_mix": ("fa_kernels.widgets.instruction_mix", "instruction_mix"),
    "ladder": ("fa_kernels.widgets.ladder", "ladder"),
    "speed": ("fa_kernels.widgets.speed", "speed"),
    "peers": ("fa_kernels.widgets.peers", "peers"),
    "step_times": ("fa_kernels.widgets.step_times", "step_times"),
    "training_steps": ("fa_kernels.widgets.training_steps", "training_steps"),
    "roofline": ("fa_kernels.widgets.roofline", "roofline"),
    "utilisation": ("fa_kernels.widgets.utilisation", "utilisation"),
    "check_compiled": ("fa_kernels.widgets.compiled_check", "check_compiled"),
    "claims": ("fa_kernels.widgets.claims", "claims"),
    "memory_levels": ("fa_kernels.widgets.memory_levels", "memory_levels"),
    "check_ceilings": ("fa_kernels.widgets.ceiling_check", "check_ceilings"),
    "what_fits": ("fa_kernels.widgets.what_fits", "what_fits"),
    "paper_results": ("fa_kernels.widgets.paper_results", "paper_results"),
    "paper_verdicts": ("fa_kernels.widgets.paper_results", "paper_verdicts"),
    "figure2_middle": ("fa_kernels.widgets.figure2_middle", "figure2_middle"),
    "compare_runs": ("fa_kernels.widgets.run_comparison", "compare_runs"),
    "cache_memory": ("fa_kernels.widgets.cache_memory", "cache_memory"),
    "fragmentation": ("fa_kernels.widgets.fragmentation", "fragmentation"),
    "batching": ("fa_kernels.widgets.batching", "batching"),
    "generation": ("fa_kernels.widgets.generation", "generation"),
    "regimes": ("fa_kernels.widgets.regimes", "regimes"),
    "split_kv": ("fa_kernels.widgets.split_kv", "split_kv"),
    "check_decode": ("fa_kernels.widgets.decode_check", "check_decode"),
    "mask_editor": ("fa_kernels.widgets.mask_editor", "mask_editor"),
    "sparse_quality": ("fa_kernels.widgets.sparse_quality", "sparse_quality"),
    "sparse_speed": ("fa_kernels.widgets.sparse_speed", "sparse_speed"),
    "save_figure": ("fa_kernels.figures.figure_files", "save_figure"),
}

__all__ = [
    "ALGORITHMS",
    "VARIANTS",
    "AttentionProblem",
    "BlockMask",
    "Tiling",
    "attention",
    "attention_backward",
    "data_sheet",
    "dropout_keep",
    "session",
    "trace_row",
    "units",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name == "figures":  # for fa.figures.save
        return importlib.import_module("fa_kernels.figures")
    if name not in _LAZY:
        raise AttributeError(f"module 'fa_kernels' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "figures"})

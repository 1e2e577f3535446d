"""Numbers that slides and notes name: computed from data sheets, models and recorded runs.

A text says `{fact:ridge tensor}`: a method of `Facts`, and its arguments as words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from fa_kernels.device import Device, device
from fa_kernels.masks import matmul_flops
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.registry import Answer, answers
from fa_kernels.present.prose import chosen
from fa_kernels.present.slide import SlideError
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB, capacity, significant, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.claims import counted
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.paper_results import paper_verdicts
from fa_kernels.widgets.step_times import step_times
from fa_kernels.widgets.training_steps import training_steps

#: The point of the talk's figures: 16384 tokens of width 2048 in fp16, in tiles of 64 x 128.
SEQLEN, HEAD_DIM, TILING = 4096, 64, Tiling(64, 128)
_NAMES = {"standard": "standard_tiled", "flash": "flash_q_outer"}


class Facts:
    """Facts by name, about the GPU of a session's recorded runs."""

    def __init__(self, used: Session) -> None:
        self.used = used

    def say(self, name: str, *words: str) -> str:
        """The fact of that name as text.

        Raises:
            SlideError: no such fact, or other words than it takes.
        """
        known = [n for n, f in vars(Facts).items() if callable(f) and n[0] != "_" and n != "say"]
        if name not in known:
            raise SlideError(f"fact {name!r} is not one of {', '.join(sorted(known))}.")
        try:
            return str(getattr(self, name)(*words))
        except (TypeError, ValueError, KeyError) as error:
            raise SlideError(f"fact {name} {' '.join(words)}: {error}") from error

    # -- the data sheet ------------------------------------------------------------------------

    @cached_property
    def _sheet(self) -> Device:
        return device(default_device(self.used))

    def gpu(self) -> str:
        """The name of the GPU."""
        return self._sheet.name

    def sram(self) -> str:
        """What one block may have of shared memory."""
        return capacity(self._sheet.smem_per_block_bytes)

    def hbm(self) -> str:
        """What the memory beside the chip holds."""
        return capacity(self._sheet.hbm_capacity_bytes)

    def bandwidth(self) -> str:
        """What it delivers a second, by the data sheet."""
        return f"{traffic(self._sheet.hbm_bandwidth_gb_s * 1e9)}/s"

    def ridge(self, units: str) -> str:
        """FLOP per byte from which on arithmetic binds, on "tensor" cores or the "fp32" units."""
        dtype = {"tensor": "float16", "fp32": "float32"}[units]
        return f"{self._sheet.ridge_flop_per_byte(dtype, units == 'tensor'):.0f}"

    # -- models --------------------------------------------------------------------------------

    def intensity(self, name: str) -> str:
        """FLOP per byte asked for, of "standard" or "flash" at the talk's point."""
        problem = AttentionProblem.of_tokens(SEQLEN, HEAD_DIM)
        moved = VARIANTS[_NAMES[name]].launched(problem, TILING)
        return f"{moved.intensity(matmul_flops(problem)):.0f}"

    def scores(self, seqlen: str) -> str:
        """What S and P of the batch take at a length."""
        problem = AttentionProblem.of_tokens(int(seqlen), HEAD_DIM)
        return capacity(VARIANTS["standard_tiled"].memory(problem).workspace_bytes)

    def inputs(self, seqlen: str) -> str:
        """What Q, K and V of the batch take at a length."""
        problem = AttentionProblem.of_tokens(int(seqlen), HEAD_DIM)
        return capacity(VARIANTS["standard_tiled"].memory(problem).input_bytes)

    def rows(self, kib: str) -> str:
        """The tiles of Algorithm 1 for a budget: "64 rows of Q and 128 rows of K and V"."""
        tiling = Tiling.from_sram(int(kib) * KIB, HEAD_DIM, "fp16")
        return f"{tiling.block_m} rows of Q and {tiling.block_n} rows of K and V"

    # -- recorded runs -------------------------------------------------------------------------

    def faster(self, slow: str, fast: str) -> str:
        """How many times as fast one provider of the session's run is as another."""
        return f"{significant(self._latency(slow) / self._latency(fast), 2)} times"

    def _latency(self, provider: str) -> float:
        where = {
            "provider": provider, "metric": "latency_ms", "pass_": "fwd", "dtype": "float16",
            "seqlen_q": SEQLEN, "head_dim": HEAD_DIM, "block_mask": "", "status": "ok",
        }  # fmt: skip
        run = self.used.run
        found = [row.median for row in (run.select(**where) if run else []) if row.median]
        if len(found) != 1:
            raise KeyError(f"{len(found)} times of {provider} are recorded here, not one")
        return found[0]

    def training(self) -> str:
        """What a training step gains, in one sentence."""
        return chosen(training_steps(session=self.used).caption(), "1")

    def step(self) -> str:
        """What forward and backward take together, in one sentence."""
        return chosen(step_times(session=self.used).caption(), "1")

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that the facts above read, beside those of the figures."""
        found = (self.used.run, training_steps(session=self.used).recorded.run)
        return tuple(run.run_id for run in found if run is not None)

    # -- verdicts ------------------------------------------------------------------------------

    @cached_property
    def answers(self) -> Mapping[str, Answer]:
        """Every claim of the two documents by id, with its verdict."""
        found = answers(Evidence.on(self._sheet, self.used.root))
        return {answer.claim.id: answer for answer in found}

    def claims(self) -> str:
        """How many claims have which verdict."""
        return counted(tuple(self.answers.values()))

    def why(self, claim: str) -> str:
        """The numbers behind the verdict of one claim."""
        return self.answers[claim].judged.why

    def verdicts(self) -> str:
        """How many of the papers' results come out again."""
        return chosen(paper_verdicts(session=self.used).caption(), "1")

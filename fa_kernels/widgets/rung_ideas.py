"""Where each rung's one idea stands in its source: anchors that a test looks for.

Line numbers would go stale with every edit; an anchor is a piece of a line that must be there. The
words beside an idea are in the labels, under [rung_reader.ideas].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.cuda.kernel_file import KernelFile


@dataclass(frozen=True)
class Idea:
    """Lines from the first that holds `start` to the next that holds `end`.

    Looked for in the kernel's own file, then in the headers it is built from.
    """

    key: str
    kernel: str
    start: str
    end: str


_01, _02, _03 = "01_standard_naive", "02_standard_tiled", "03_flash_kv_outer"
_04, _05 = "04_flash_q_outer", "05_flash_mma"
_05_BACKWARD = "05_flash_mma_backward"
_06, _06_BACKWARD = "06_flash_wgmma", "06_flash_wgmma_backward"

IDEAS: tuple[Idea, ...] = (
    Idea("naive_product", _01, "sum += to_float(q[c])", "sum += to_float(q[c])"),
    Idea("naive_stores_s", _01, "s[i64(row_of_all) * seqlen_k + col] =", "s[i64("),
    Idea("naive_output", _01, "for (int key = begin; key < end; ++key)", "sum +="),
    Idea("tiles", _02, "load_tile<BLOCK_M, ALIGNED>(q_smem", "__syncthreads();"),
    Idea("register_tile", _02, "Chunk a_rmem[S_ROWS], b_rmem", "s_rmem[i][j] +="),
    Idea("stores_s", _02, "store_scores(s, s_smem", "traffic);"),
    Idea("kv_outside", _03, "for (int k_tile = range.begin_of(0)", "k_tile"),
    Idea("scores_stay", _03, "scores_tile(smem.s", "softmax_tile<true>("),
    Idea("online", _03, "const float m_new = fmaxf(m_old, m_tile);", "const float m_new"),
    Idea("o_from_hbm", _03, "if (first)", "o.load<O_VECTOR>"),
    Idea("o_normalised", _03, "o.scale_rows(smem.alpha);", "o.divide_rows(smem.l);"),
    Idea("q_outside", _04, "const int q_tile = q_tiles - 1", "const int q0 ="),
    Idea("kv_inside", _04, "while (walk.more()) {", "const int k0 ="),
    Idea("o_stays", _04, "o.scale_rows(smem.alpha);", "o.add_product(smem.s"),
    Idea("o_once", _04, "__syncthreads();  // 1 / l of every row", "o.store<ALIGNED>"),
    Idea("mma", _05, "mma.sync.aligned.m16n8k16", '"r"(a[0])'),
    Idea("products", _05, "mma(c[m][n], a[m], b[0], b[1]);", "mma(c[m][n + 1]"),
    Idea("p_repacked", _05, "a[m][i] = pack(c[m]", "pack("),
    Idea("copied_ahead", _05, "cp.async.cg.shared.global", '"memory");'),
    Idea("swizzle", _05, "constexpr int swizzled(", "#endif"),
    Idea("folded_scale", _05, "fast_exp2(fmaf(p, scale", "fast_exp2(fmaf("),
    Idea("transposed", _05_BACKWARD, "scores(p, smem.k, q_tile", "scores(dp, smem.v, d_out_tile"),
    Idea("operands", _05_BACKWARD, "add_to_keys(dv, p, smem.p", "add_to_keys(dk, dp, ds"),
    Idea("ds_shared", _05_BACKWARD, "const auto ds = reader_of_a_transposed", "const TileReader"),
    Idea("one_barrier", _05_BACKWARD, "// What was copied for this visit", "__syncthreads();"),
    Idea("taking_turns", _05_BACKWARD, "// Two warps share a scheduler.", "&& dq_last)"),
    Idea("going_round", _05_BACKWARD, "RoundQueue walk(rows_of.first", "HEAD_DIM_PAD <= 128"),
    Idea("four_at_once", _05_BACKWARD, "red.global.add.v4.f32", '"memory");'),
    Idea("producer", _06, "give_registers<PRODUCER_REGISTERS>();", "if (threadIdx.x == THREADS) {"),
    Idea("tma", _06, "cp.async.bulk.tensor.4d", '"memory");'),
    Idea("descriptor", _06, "Operand operand(unsigned tile", "128-byte swizzle"),
    Idea("wgmma", _06, "m64n128k16", '"n"(DOWN_B)'),
    Idea("turns", _06, "turns.take();", "turns.pass();"),
    Idea("overlap", _06, "wgmma_wait<OVERLAP>();", "wgmma_wait<0>();"),
    Idea("counter", _06, "int next() const", "atomicAdd("),
    Idea("fetching_warp", _06_BACKWARD, "give_registers<PRODUCER_REGISTERS>();", "return;"),
    Idea("keys_of_a_group", _06_BACKWARD, "add_to_keys(dk_frags, ds_left", "wgmma_commit();"),
    Idea("dv_runs_on", _06_BACKWARD, "#if EARLY_DV", "wgmma_wait<1>();"),
    Idea("ds_alone", _06_BACKWARD, "store_ds(smem.ds + odd", "warp_arrive(smem.ds_full()"),
    Idea("dq_runs_on", _06_BACKWARD, "row_gradient(dq, ds_slab", "wgmma_wait<1>();"),
    Idea("dq_by_tma", _06_BACKWARD, "bulk_add(to, piece", "bulk_commit();"),
)


def place_of(idea: Idea, files: Sequence[KernelFile]) -> tuple[KernelFile, range] | None:
    """The file in which an idea stands, and its lines counted from 0; None if no file holds it."""
    for file in files:
        if lines := file.find(idea.start, idea.end):
            return file, lines
    return None


def ideas_of(kernel: str) -> list[Idea]:
    """Those of one kernel, in the order in which they are best read."""
    return [idea for idea in IDEAS if idea.kernel == kernel]

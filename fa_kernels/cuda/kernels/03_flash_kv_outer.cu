// FlashAttention as first published: K/V tiles outside, O, m and l carried through HBM.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 1, and Algorithm 5 with -DBLOCK_SPARSE; one
//   block per (batch, head). Two K/V tiles of one head would race on O; the Q tiles under one K/V
//   tile would not, but to spread them over blocks each would have to read K and V again, which is
//   04. Differs from the paper in skipping what causal and window remove, in not reading what it
//   knows (the zeros of a first visit), in storing a Q tile's last visit straight to out, in
//   keeping the O tile in registers, and in exponentials relative to the new maximum (the paper
//   rescales P by a second factor; the products are equal).
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. io dtype fp16, bf16 or fp32 (io.cuh). lse
//   (batch, nheads, seqlen_q) fp32, natural log, contiguous; between visits it holds m, in the
//   units of score.cuh, which also has window, mask, bias, dropout and packed sequences. Workspace
//   l, shaped like lse, and o_partial (batch, nheads, seqlen_q, HEAD_DIM) fp32, contiguous.
//   -DO_IO_DTYPE: O is carried in out, in the io dtype, without o_partial. With -DBLOCK_SPARSE a
//   block mask and the list of Q tiles of each K/V tile (block_mask.cuh).
// Launch: grid = batch * nheads; THREADS per block; dynamic shared memory SMEM_BYTES.
// SRAM, bytes: itemsize (2 BLOCK_N + BLOCK_M) d + 4 BLOCK_M BLOCK_N + 12 BLOCK_M; the O tile,
//   4 BLOCK_M d bytes, is in registers. A block mask that cuts tiles adds one byte per block that
//   a tile touches.
// HBM, elements per (batch, head), no mask, T = ceil(seqlen_k / BLOCK_N): K and V once, 2 seqlen_k
//   d; Q T seqlen_q d; O, fp32, 2 (T - 1) seqlen_q d, and out seqlen_q d in the io dtype; m and l,
//   fp32, 4 (T - 1) seqlen_q, and seqlen_q for lse. Under a block mask only the tiles that keep an
//   element are visited (a fraction s, if its blocks are whole tiles), and the lists that name
//   them are read: 16 bytes a list, 4 an entry, 1 a block that a cut tile touches.
//   Mask, bias and dropout mask cost their bytes for every kept pair.
// Numerics: S, P, m, l in fp32; exp2 with log2(e) folded into the scale, without a bias. O is
//   divided by l after every visit and multiplied by it at the next: exact on paper, three
//   roundings a visit here. With -DO_IO_DTYPE each visit also rounds O to 16 bits, and the error
//   grows with T. Subnormals, masked rows and NaN as in 04.
// Architectures: sm_75 and later.
// Changed from 02: S and P stay in shared memory (one launch instead of three), which needs the
//   online softmax; the matmul loops are the same code (tile.cuh).
// Limits and verdict: it reads K and V once, and pays with T reads and writes of O. One block per
//   head leaves most of the GPU idle unless batch * nheads is large: kept as the paper's algorithm.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "flash_smem.cuh"
#include "trace.cuh"

#if O_IO_DTYPE
using o_t = io_t;
constexpr bool O_VECTOR = ALIGNED;
#else
using o_t = float;
constexpr bool O_VECTOR = HEAD_DIM % 4 == 0;  // rows of the workspace are HEAD_DIM floats
#endif

// With at most two blocks an SM, or options that need more registers, ptxas must not save registers
// for one block more: it would spill.
#if FEW_BLOCKS || WINDOW || HAS_OPTIONS
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS)
#endif

extern "C" __global__ void LAUNCH_BOUNDS
flash_kv_outer(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, const io_t* v,
               Strides v_strides, io_t* out, Strides out_strides, float* lse, float* l_hbm,
               float* o_partial, int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band,
               float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS TRACE_PARAMS
                   TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    const FlashSmem smem(smem_bytes);

    const int bh = blockIdx.x;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const i64 row0 = seq.stats_row0;
    q += seq.batch * q_strides.batch + head * q_strides.head + seq.q_row0 * q_strides.row;
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head + seq.k_row0 * v_strides.row;
    out += seq.batch * out_strides.batch + head * out_strides.head + seq.q_row0 * out_strides.row;
    lse += row0;
    l_hbm += row0;
#if O_IO_DTYPE
    o_t* const o_hbm = out;
    const i64 o_stride = out_strides.row;
#else
    o_t* const o_hbm = o_partial + row0 * HEAD_DIM;
    const i64 o_stride = HEAD_DIM;
#endif

    // The last row attends the last keys, the first row the first.
    const int q_tiles = ceil_div(seq.seqlen_q, BLOCK_M);
    const int k_end = range.end_of(seq.seqlen_q - 1);
    const int k_tiles = ceil_div(k_end, BLOCK_N);
#if BLOCK_SPARSE
    __shared__ int entry_smem;
    const int lists = ceil_div(seqlen_k, BLOCK_N) + 1;
    const BlockMask block_mask = BLOCK_MASK(batch, head, lists);
#endif

    Traffic traffic;
    TRACER;
    for (int k_tile = range.begin_of(0) / BLOCK_N; k_tile < k_tiles; ++k_tile) {
        const int k0 = k_tile * BLOCK_N;
        const int keys = min(BLOCK_N, k_end - k0);
#if BLOCK_SPARSE
        TileWalk walk(&entry_smem, block_mask, k_tile, traffic);
        if (!walk.more()) continue;  // no Q tile attends this K/V tile: do not load it
#else
        // Q tiles above attend none of these keys, nor do those below that a window leaves.
        const i64 first_row = max(i64(0), k0 - range.end);
        const i64 last_row = WINDOW ? k0 + keys - 1 - range.begin : seq.seqlen_q - 1;
        const int q_stop = last_row < 0 ? 0 : int(min(i64(q_tiles), last_row / BLOCK_M + 1));
        TileWalk walk(static_cast<int>(first_row / BLOCK_M), q_stop);
        if (!walk.more()) continue;
#endif
        load_tile<BLOCK_N, ALIGNED>(smem.k, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K,
                                    traffic);
        load_tile<BLOCK_N, ALIGNED>(smem.v, v + k0 * v_strides.row, v_strides.row, keys, TENSOR_V,
                                    traffic);
        while (walk.more()) {
            const int q0 = walk.tile() * BLOCK_M;
            const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
            const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
#if BLOCK_SPARSE
            const bool first = walk.flags() & FLAG_FIRST, last = walk.flags() & FLAG_LAST;
#else
            const bool first = k_tile == range.begin_of(q0) / BLOCK_N;
            const bool last = k0 + BLOCK_N >= range.end_of(q0 + q_rows - 1);
#endif
            // O is first asked for and last needed: its way from HBM hides behind Q K^T.
            OTile o;
            if (first)
                o.clear();
            else
                o.load<O_VECTOR>(o_hbm + q0 * o_stride, o_stride, q_rows, TENSOR_OUT, traffic);
            for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
                const bool stored = !first && row < q_rows;
                smem.m[row] = stored ? lse[q0 + row] : -INF;
                smem.l[row] = stored ? l_hbm[q0 + row] : 0.f;
                if (stored) traffic.read(TENSOR_LSE, 8);
            }
            load_tile<BLOCK_M, ALIGNED>(smem.q, q + q0 * q_strides.row, q_strides.row, q_rows,
                                        TENSOR_Q, traffic);
            __syncthreads();  // K and V (first Q tile), Q, m, l and cells are in shared memory
            walk.advance(traffic);
            TRACE_OLD_L(row0 + q0, q_rows, smem.l);
            scores_tile(smem.s, smem.q, smem.k, scale, mask, traffic);
            __syncthreads();  // all of S is written before any row of it is reduced
            softmax_tile<true>(smem.s, smem.m, smem.l, smem.alpha, mask, traffic);
            __syncthreads();  // P, alpha and the new l are complete
            o.scale_rows(smem.alpha);  // alpha l_old: diag(l_old) undoes the division before
            o.add_product(smem.s, smem.v, min(BLOCK_N_PAD, round_up(keys, 4)));
            o.divide_rows(smem.l);
            TRACE_RECORD(row0 + q0, q_rows, k0, keys, true, smem.m, smem.l, smem.alpha, o);

            // A thread reads back only what it wrote itself (O, m and l alike): no fence is needed.
            if (last)
                o.store<ALIGNED>(out + q0 * out_strides.row, out_strides.row, q_rows, TENSOR_OUT,
                                 traffic);
            else
                o.store<O_VECTOR>(o_hbm + q0 * o_stride, o_stride, q_rows, TENSOR_OUT, traffic);
            for (int row = threadIdx.x; row < q_rows; row += THREADS) {
                const float m = smem.m[row], l = smem.l[row];
                lse[q0 + row] = !last ? m : l == 0.f ? -INF : m * UNITS_TO_LN + logf(l);
                if (!last) l_hbm[q0 + row] = l;
                traffic.write(TENSOR_LSE, last ? 4 : 8);
            }
            __syncthreads();  // everyone is done with Q, P, m and l, and with K and V at the end
        }
    }

    // Q tiles that attend nothing were never visited.
#if BLOCK_SPARSE
    TileWalk unattended(&entry_smem, block_mask, lists - 1, traffic);
#else
    TileWalk unattended(0, q_tiles);
#endif
    while (unattended.more()) {
        const int q0 = unattended.tile() * BLOCK_M;
        const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
        if (BLOCK_SPARSE || range.begin_of(q0) >= range.end_of(q0 + q_rows - 1)) {
            OTile o;
            o.clear();
            o.store<ALIGNED>(out + q0 * out_strides.row, out_strides.row, q_rows, TENSOR_OUT,
                             traffic);
            for (int row = threadIdx.x; row < q_rows; row += THREADS) {
                lse[q0 + row] = -INF;
                traffic.write(TENSOR_LSE, 4);
            }
        }
#if BLOCK_SPARSE
        __syncthreads();  // all have read this entry of the list
        unattended.advance(traffic);
        __syncthreads();  // the next entry is there
#else
        unattended.advance(traffic);
#endif
    }
    TRAFFIC_FLUSH(traffic);
}

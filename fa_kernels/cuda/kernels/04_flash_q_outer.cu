// FlashAttention forward on CUDA cores, Q blocks in the outer loop: S and P never leave the chip.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1: one block per Q tile, a loop over K/V
//   tiles, O normalised once at the end. Differs from it in using CUDA cores, not tensor cores,
//   and in keeping S in shared memory (the paper's warps keep it in registers).
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log, contiguous. io dtype fp16, bf16 or fp32 (io.cuh). With -DBLOCK_SPARSE a block mask and
//   the list of K/V tiles of each Q tile (block_mask.cuh). Window, mask, bias, dropout and packed
//   sequences: score.cuh.
// Launch: grid = batch * nheads * ceil(seqlen_q / BLOCK_M), neighbours share K and V; THREADS per
//   block; dynamic shared memory SMEM_BYTES. -DONE_BLOCK_PER_HEAD: grid = batch * nheads, and the
//   block goes over the Q tiles itself: the loop order of 04 with the parallelism of 03.
// SRAM, bytes: itemsize (2 BLOCK_N + BLOCK_M) d + 4 BLOCK_M BLOCK_N + 12 BLOCK_M; the O tile,
//   4 BLOCK_M d bytes, is in registers. A block mask that cuts tiles adds one byte per block that
//   a tile touches.
// HBM, elements per (batch, head), no mask: 2 seqlen_q d + 2 seqlen_k d ceil(seqlen_q / BLOCK_M),
//   and seqlen_q fp32 for lse. Under causal or a window a Q tile reads the K/V tiles that hold its
//   keys, up to the last; under a block mask only the tiles that keep an element (a fraction s, if
//   its blocks are whole tiles), and the lists that name them: 16 bytes a list, 4 an entry, 1 a
//   block that a cut tile touches. Mask, bias and dropout mask cost their bytes for every kept
//   pair.
// Numerics: S, P, O, m, l in fp32; exp2 with log2(e) folded into the scale (with a bias it is
//   applied to differences of scores instead: finfo.min times log2(e) would overflow). Subnormal
//   fp32 values are flushed to zero. A row with no kept key gives out 0 and lse -inf. NaN in one
//   query row stays in that row; NaN or inf in a V row reaches every row of Q that shares a tile
//   with it, masked or not (0 * NaN).
// Architectures: sm_75 and later.
// Changed from 03: the loops are swapped. O, m and l stay on chip and are written once, normalised
//   once; K and V are read again for every Q tile; and Q tiles are independent, so each gets a
//   block of its own.
// Limits and verdict: bound by fp32 arithmetic, not by HBM, so larger tiles cut traffic but leave
//   one block per SM with nothing to hide its latency. Tensor cores are what it lacks.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "flash_smem.cuh"
#include "trace.cuh"

// With few blocks an SM, or options and masks that need more registers, ptxas must not save
// registers for one block more: it would spill.
#if FEW_BLOCKS || ONE_BLOCK_PER_HEAD || CUTS_TILES || HAS_OPTIONS
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS)
#endif

extern "C" __global__ void LAUNCH_BOUNDS
flash_q_outer(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, const io_t* v,
              Strides v_strides, io_t* out, Strides out_strides, float* lse, int nheads,
              int kv_group, int seqlen_q, int seqlen_k, Band band,
              float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS TRACE_PARAMS
                  TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    const FlashSmem smem(smem_bytes);

    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);  // of the longest sequence, if packed
    const int bh = ONE_BLOCK_PER_HEAD ? blockIdx.x : blockIdx.x / q_tiles;
    const int tiles_here = ONE_BLOCK_PER_HEAD ? q_tiles : 1;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head + seq.k_row0 * v_strides.row;
    q += seq.batch * q_strides.batch + head * q_strides.head + seq.q_row0 * q_strides.row;
    out += seq.batch * out_strides.batch + head * out_strides.head + seq.q_row0 * out_strides.row;
#if BLOCK_SPARSE
    __shared__ int entry_smem;
    const BlockMask block_mask = BLOCK_MASK(batch, head, q_tiles);
#endif

    Traffic traffic;
    for (int n = 0; n < tiles_here; ++n) {
        // Last tile first: under a causal mask it has the most work, and late long blocks idle
        // the GPU.
        const int q_tile = q_tiles - 1 - (ONE_BLOCK_PER_HEAD ? n : blockIdx.x % q_tiles);
        const int q0 = q_tile * BLOCK_M;
        if (PACKED && q0 >= seq.seqlen_q) continue;  // past the end of a shorter sequence
        const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
        const i64 lse_row0 = seq.stats_row0 + q0;
        if (ONE_BLOCK_PER_HEAD) __syncthreads();  // 1 / l of the last Q tile has been read by all
        load_tile<BLOCK_M, ALIGNED>(smem.q, q + q0 * q_strides.row, q_strides.row, q_rows, TENSOR_Q,
                                    traffic);
        for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
            smem.m[row] = -INF;
            smem.l[row] = 0.f;
        }
        OTile o;
        o.clear();
        TRACER;

        // The tile's last row attends the last keys, its first row the first.
        const int key_end = range.end_of(q0 + q_rows - 1);
#if BLOCK_SPARSE
        TileWalk walk(&entry_smem, block_mask, q_tile, traffic);
#else
        TileWalk walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
        while (walk.more()) {
            const int k0 = walk.tile() * BLOCK_N;
            const int keys = min(BLOCK_N, key_end - k0);
            const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
            load_tile<BLOCK_N, ALIGNED>(smem.k, k + k0 * k_strides.row, k_strides.row, keys,
                                        TENSOR_K, traffic);
            load_tile<BLOCK_N, ALIGNED>(smem.v, v + k0 * v_strides.row, v_strides.row, keys,
                                        TENSOR_V, traffic);
            __syncthreads();  // Q (first pass), K, V and the mask's cells are in shared memory
            walk.advance(traffic);
            scores_tile(smem.s, smem.q, smem.k, scale, mask, traffic);
            __syncthreads();  // all of S is written before any row of it is reduced
            softmax_tile(smem.s, smem.m, smem.l, smem.alpha, mask, traffic);
            __syncthreads();  // P and alpha are complete before other threads read them
            o.scale_rows(smem.alpha);
            o.add_product(smem.s, smem.v, min(BLOCK_N_PAD, round_up(keys, 4)));
            TRACE_RECORD(lse_row0, q_rows, k0, keys, false, smem.m, smem.l, smem.alpha, o);
            __syncthreads();  // everyone is done with K, V and P before they are overwritten
        }

        for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
            const float l = smem.l[row];
            smem.alpha[row] = l == 0.f ? 0.f : 1.f / l;  // out = 0 for a row with no kept key
            if (row < q_rows) {
                lse[lse_row0 + row] = l == 0.f ? -INF : smem.m[row] * UNITS_TO_LN + logf(l);
                traffic.write(TENSOR_LSE, 4);
            }
        }
        __syncthreads();  // 1 / l of every row is there
        o.scale_rows(smem.alpha);
        o.store<ALIGNED>(out + q0 * out_strides.row, out_strides.row, q_rows, TENSOR_OUT, traffic);
    }
    TRAFFIC_FLUSH(traffic);
}

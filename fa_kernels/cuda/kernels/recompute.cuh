// P and dS of one tile, rebuilt on chip: what the backward rungs 03 and 04 share.
//
// Both keep the same tiles in shared memory: Q, dO, K, V, then P (times dropout), dS (times scale),
// and three numbers of every row of Q. fa_kernels/cuda/plan_backward.py (backward_smem) states the
// same layout in Python.
#pragma once

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "backward.cuh"
#include "key_tile.cuh"

constexpr int Q_CHUNKS = BLOCK_M * HEAD_CHUNKS;
constexpr int KV_CHUNKS = BLOCK_N * HEAD_CHUNKS;
constexpr int ROWS_PAD = round_up(BLOCK_M, 4);
static_assert(SMEM_BYTES == 32 * (Q_CHUNKS + KV_CHUNKS) + 8 * BLOCK_M * BLOCK_N_PAD +
                                12 * ROWS_PAD + MASK_SMEM_BYTES,
              "SMEM_BYTES does not match the layout below: fix backward_smem or this header");

struct BackwardSmem {
    Chunk* q;              // [BLOCK_M, HEAD_DIM]
    Chunk* d_out;          // [BLOCK_M, HEAD_DIM]
    Chunk* k;              // [BLOCK_N, HEAD_DIM]
    Chunk* v;              // [BLOCK_N, HEAD_DIM]
    float* p;              // [BLOCK_M, BLOCK_N], S, then P times dropout in its place
    float* ds;             // [BLOCK_M, BLOCK_N], dP, then dS times scale in its place
    float* m;              // [BLOCK_M], P = exp(S - m) row_scale
    float* row_scale;      // [BLOCK_M], 1 without a bias
    float* delta;          // [BLOCK_M], rowsum(d_out out)
    unsigned char* cells;  // [CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit BackwardSmem(unsigned char* smem)
        : q(reinterpret_cast<Chunk*>(smem)), d_out(q + Q_CHUNKS), k(d_out + Q_CHUNKS),
          v(k + KV_CHUNKS), p(reinterpret_cast<float*>(v + KV_CHUNKS)),
          ds(p + BLOCK_M * BLOCK_N_PAD), m(ds + BLOCK_M * BLOCK_N_PAD), row_scale(m + ROWS_PAD),
          delta(row_scale + ROWS_PAD),
          cells(reinterpret_cast<unsigned char*>(delta + ROWS_PAD)) {}
};

// m and row_scale of one Q tile. Rows that attend nothing and rows past the end of q get m = +inf,
// so that P and dS are 0 there.
__device__ __forceinline__ void load_statistics(const BackwardSmem& smem, const float* row_m,
                                                const float* row_scale, int rows,
                                                Traffic& traffic) {
    for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
        const float m = row < rows ? row_m[row] : -INF;
        smem.m[row] = m == -INF ? INF : m;
        smem.row_scale[row] = BIAS && row < rows ? row_scale[row] : 1.f;
        if (row < rows) traffic.read(TENSOR_LSE, BIAS ? 8 : 4);
    }
}

// delta of one Q tile, where it was computed before.
__device__ __forceinline__ void load_delta(const BackwardSmem& smem, const float* delta, int rows,
                                           Traffic& traffic) {
    for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
        smem.delta[row] = row < rows ? delta[row] : 0.f;
        if (row < rows) traffic.read(TENSOR_DELTA, 4);
    }
}

// exp(s - m): s in the units of score.cuh, m in natural units as lse. The product is not rounded
// before the difference, which large scores would feel.
__device__ __forceinline__ float probability(float s, float m) {
    return BIAS ? exp_units(s - m) : exp2f(fmaf(-m, LOG2E, s));
}

// p_smem = P times dropout and ds_smem = dS times scale, [BLOCK_M, BLOCK_N] both, from tiles and
// statistics in shared memory: dS = P (dP - delta), dP = (d_out V^T) times dropout.
__device__ __forceinline__ void p_and_ds_tile(const BackwardSmem& smem, float score_scale,
                                              const TileMask& mask, Traffic& traffic) {
    constexpr float TO_SCALE = UNITS_TO_LN;  // scores carry log2(e) where exp is exp2
    scores_tile(smem.p, smem.q, smem.k, score_scale, mask, traffic);
    product_tile(smem.d_out, smem.v, [&](int row, int col, float product) {
        smem.ds[row * BLOCK_N_PAD + col] = product;
    });
    __syncthreads();  // S, dP and delta are complete: threads now take other elements
    const float scale = score_scale * TO_SCALE;
    const int lane = threadIdx.x % ROW_LANES;
    for (int row = threadIdx.x / ROW_LANES; row < BLOCK_M; row += THREADS / ROW_LANES) {
        const float m = smem.m[row], row_scale = smem.row_scale[row], delta = smem.delta[row];
        for (int col = lane * 4; col < BLOCK_N; col += ROW_LANES * 4) {
            float4& p = *reinterpret_cast<float4*>(smem.p + row * BLOCK_N_PAD + col);
            float4& ds = *reinterpret_cast<float4*>(smem.ds + row * BLOCK_N_PAD + col);
            const float4 whole =
                make_float4(probability(p.x, m) * row_scale, probability(p.y, m) * row_scale,
                            probability(p.z, m) * row_scale, probability(p.w, m) * row_scale);
            const float4 z = mask.dropped(row, col, make_float4(1.f, 1.f, 1.f, 1.f), traffic);
            p = make_float4(whole.x * z.x, whole.y * z.y, whole.z * z.z, whole.w * z.w);
            ds.x = scale * whole.x * (ds.x * z.x - delta);
            ds.y = scale * whole.y * (ds.y * z.y - delta);
            ds.z = scale * whole.z * (ds.z * z.z - delta);
            ds.w = scale * whole.w * (ds.w * z.w - delta);
        }
    }
    __syncthreads();  // P and dS are complete before they are multiplied
}

#if BIAS
// The softmax's m and l of one Q tile, which is in smem.q, to smem.m and smem.row_scale. `walk`
// goes over its K/V tiles, mask_of(k0, keys) gives the mask of one.
template <typename MaskOf>
__device__ __forceinline__ void softmax_of_rows(const BackwardSmem& smem, TileWalk& walk,
                                                const io_t* k, i64 k_stride, int key_end,
                                                float score_scale, MaskOf mask_of,
                                                Traffic& traffic) {
    for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
        smem.m[row] = -INF;
        smem.row_scale[row] = 0.f;
    }
    while (walk.more()) {
        const int k0 = walk.tile() * BLOCK_N;
        const int keys = min(BLOCK_N, key_end - k0);
        const TileMask mask = mask_of(k0, keys);
        load_tile<BLOCK_N, ALIGNED>(smem.k, k + k0 * k_stride, k_stride, keys, TENSOR_K, traffic);
        __syncthreads();  // Q, K, m, l and the mask's cells are in shared memory
        walk.advance(traffic);
        scores_tile(smem.p, smem.q, smem.k, score_scale, mask, traffic);
        __syncthreads();  // all of S is written before any row of it is reduced
        softmax_tile(smem.p, smem.m, smem.row_scale, smem.delta, mask, traffic);
        __syncthreads();  // everyone is done with K and S before they are overwritten
    }
}

// row_m and row_scale of the Q tile of this block: from lse; from S once more where lse is too
// large to hold log(l).
__device__ __forceinline__ void
row_statistics(const BackwardSmem& smem, const io_t* q, Strides q_strides, const io_t* k,
               Strides k_strides, const float* lse, float* row_m, float* row_scale, int nheads,
               int kv_group, int seqlen_q, int seqlen_k, Band band, float scale,
               Traffic& traffic BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS) {
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);  // of the longest sequence, if packed
    const int q_tile = blockIdx.x % q_tiles, q0 = q_tile * BLOCK_M, bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const i64 row0 = seq.stats_row0 + q0;
    if (any_large(smem.ds, lse + row0, q_rows, traffic)) {
        q += seq.batch * q_strides.batch + head * q_strides.head;
        k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
        load_tile<BLOCK_M, ALIGNED>(smem.q, q + (seq.q_row0 + q0) * q_strides.row, q_strides.row,
                                    q_rows, TENSOR_Q, traffic);
        const int key_end = range.end_of(q0 + q_rows - 1);
#if BLOCK_SPARSE
        __shared__ int entry_smem;
        const BlockMask block_mask = BLOCK_MASK(batch, head, q_tiles);
        TileWalk walk(&entry_smem, block_mask, q_tile, traffic);
#else
        TileWalk walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
        const auto mask_of = [&](int k0, int keys) { return TILE_MASK(q0, q_rows, k0, keys); };
        softmax_of_rows(smem, walk, k, k_strides.row, key_end, scale, mask_of, traffic);
    }
    store_statistics(smem.m, smem.row_scale, smem.ds, row_m + row0, row_scale + row0, q_rows,
                     traffic);
}
#endif

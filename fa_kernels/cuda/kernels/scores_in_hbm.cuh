// Tiles and rows of S, P, dP and dS where they live in HBM: what 02 and its backward share.
//
// Matrices are (batch * nheads, seqlen_q, seqlen_k) in the io dtype, contiguous; only elements that
// causal and window keep are read or written.
#pragma once

#include "io.cuh"
#include "score.cuh"
#include "tile.cuh"

// A row of S starts at a multiple of 16 bytes, and so does every tile of it.
constexpr bool TILES_ALIGNED = ROWS_ALIGNED && BLOCK_N % CHUNK == 0;

// f(row, col, lo, n) for every chunk of a tile at row q0 and key k0: elements lo..n-1 of the chunk
// that starts at column `col` are kept. `rows` rows are looked at, those past q_rows keep nothing.
template <typename F>
__device__ __forceinline__ void for_kept_chunks(const KeyRange& range, int q0, int rows, int q_rows,
                                                int k0, int keys, F f) {
    constexpr int ROW_CHUNKS = ceil_div(BLOCK_N, CHUNK);
    for (int i = threadIdx.x; i < rows * ROW_CHUNKS; i += THREADS) {
        const int row = i / ROW_CHUNKS, col = i % ROW_CHUNKS * CHUNK;
        const int end = min(keys, range.end_of(q0 + row) - k0);
        const int n = row < q_rows ? min(CHUNK, end - col) : 0;
        const int lo = WINDOW ? max(0, range.begin_of(q0 + row) - k0 - col) : 0;
        f(row, col, lo, n);
    }
}

// s_smem[BLOCK_M, BLOCK_N] = the tile at row q0 and key k0 of a head's matrix, times
// weigh(row, col), where causal and window keep it; else 0.
template <typename Weigh>
__device__ __forceinline__ void load_scores(float* s_smem, const io_t* matrix, int seqlen_q,
                                            int seqlen_k, i64 bh, const KeyRange& range, int q0,
                                            int q_rows, int k0, int keys, int tensor, Weigh weigh,
                                            Traffic& traffic) {
    const auto load = [&](int row, int col, int lo, int n) {
        const Chunk chunk =
            load_chunk<TILES_ALIGNED>(matrix + (bh * seqlen_q + q0 + row) * seqlen_k + k0 + col, n,
                                      tensor, traffic, lo);
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {  // elements outside lo..n-1 are zero
            float s = element(chunk, e);
            if (e >= lo && e < n) s *= weigh(q0 + row, k0 + col + e);
            if (col + e < BLOCK_N_PAD) s_smem[row * BLOCK_N_PAD + col + e] = s;
        }
    };
    for_kept_chunks(range, q0, BLOCK_M, q_rows, k0, keys, load);
}

// The same tile = change(row, col, s_smem[BLOCK_M, BLOCK_N]), where causal and window keep it.
// Through shared memory, so that neighbouring threads write neighbouring chunks of a row.
template <typename Change>
__device__ __forceinline__ void store_scores(io_t* matrix, const float* s_smem, int seqlen_q,
                                             int seqlen_k, i64 bh, const KeyRange& range, int q0,
                                             int q_rows, int k0, int keys, int tensor,
                                             Change change, Traffic& traffic) {
    const auto store = [&](int row, int col, int lo, int n) {
        float values[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            values[e] = col + e < BLOCK_N ? s_smem[row * BLOCK_N_PAD + col + e] : 0.f;
            if (e >= lo && e < n) values[e] = change(q0 + row, k0 + col + e, values[e]);
        }
        io_t* dst = matrix + (bh * seqlen_q + q0 + row) * seqlen_k + k0 + col;
        store_chunk<TILES_ALIGNED>(dst, values, n, tensor, traffic, lo);
    };
    for_kept_chunks(range, q0, q_rows, q_rows, k0, keys, store);
}

constexpr int ROW_WARPS = ROW_THREADS / WARP;
constexpr int ROWS_PER_BLOCK = THREADS / ROW_THREADS;
static_assert(ROW_THREADS == WARP || ROW_THREADS == THREADS, "a warp per row or a block per row");

// Combine `value` over the threads of a row; every thread gets the result.
template <typename Op>
__device__ __forceinline__ float reduce_row(float value, float identity, Op op) {
    value = reduce_lanes(value, WARP, op);
    if (ROW_WARPS == 1) return value;
    __shared__ float warp_smem[WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();  // a previous reduction may still be reading warp_smem
    if (lane == 0) warp_smem[warp] = value;
    __syncthreads();  // all warps have written
    return reduce_lanes(lane < ROW_WARPS ? warp_smem[lane] : identity, WARP, op);
}

// What every backward rung needs: loops over the rows of a K/V tile, and statistics of rows.
//
// A K/V-owned block goes over the Q tiles that attend its keys, of every head of q that shares
// them, and owns dk and dv: no other block writes there, so their bits never depend on which runs
// first.
#pragma once

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"

// The Q tiles first..stop-1 that attend a key of k0 .. k0 + keys - 1 under causal and window.
struct RowTiles {
    int first, stop;

    __device__ __forceinline__ RowTiles(const KeyRange& range, int seqlen_q, int k0, int keys) {
        // Q tiles above attend none of these keys, nor do those below that a window leaves.
        const i64 first_row = max(i64(0), k0 - range.end);
        const i64 last_row = WINDOW ? k0 + keys - 1 - range.begin : seqlen_q - 1;
        const bool none = keys <= 0 || last_row < 0;  // no row attends so late a key, or so early
        first = static_cast<int>(min(i64(seqlen_q), first_row) / BLOCK_M);
        stop = none ? 0 : int(min(i64(ceil_div(seqlen_q, BLOCK_M)), last_row / BLOCK_M + 1));
    }
};

// delta = rowsum(d_out out) of one Q tile: d_out_chunk(row, chunk, n) gives n elements of d_out,
// store(row, delta) takes the result, from one of the eight threads of the row.
template <typename DOut, typename Store>
__device__ __forceinline__ void delta_of_rows(DOut d_out_chunk, const io_t* out, i64 out_stride,
                                              int rows, Store store, Traffic& traffic) {
    constexpr int LANES = 8, STEP = THREADS / LANES, CHUNKS = ceil_div(HEAD_DIM, CHUNK);
    const int lane = threadIdx.x % LANES;
    // Whole warps stay in the loop (round_up), since the shuffles below need all lanes.
    for (int row = threadIdx.x / LANES; row < round_up(BLOCK_M, STEP); row += STEP) {
        float delta = 0.f;
        for (int c = lane; c < CHUNKS; c += LANES) {
            const int n = row < rows ? min(CHUNK, HEAD_DIM - c * CHUNK) : 0;
            const io_t* src = out + row * out_stride + c * CHUNK;
            const Chunk o_rmem = load_chunk<ALIGNED>(src, n, TENSOR_OUT, traffic);
            const Chunk d_out_rmem = d_out_chunk(min(row, BLOCK_M - 1), c, n);
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) delta += element(o_rmem, e) * element(d_out_rmem, e);
        }
        delta = reduce_lanes(delta, LANES, [](float a, float b) { return a + b; });
        if (lane == 0 && row < BLOCK_M) store(row, delta);
    }
}

// delta of the Q tile of this block, for kernels that compute it before.
__device__ __forceinline__ void delta_of_tile(const io_t* d_out, Strides d_out_strides,
                                              const io_t* out, Strides out_strides, float* delta,
                                              int nheads, int seqlen_q, int seqlen_k,
                                              Traffic& traffic PACKED_PARAMS) {
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);  // of the longest sequence, if packed
    const int q0 = blockIdx.x % q_tiles * BLOCK_M, bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const i64 row0 = seq.q_row0 + q0;
    d_out += seq.batch * d_out_strides.batch + head * d_out_strides.head + row0 * d_out_strides.row;
    out += seq.batch * out_strides.batch + head * out_strides.head + row0 * out_strides.row;
    delta += seq.stats_row0 + q0;

    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const auto d_out_chunk = [&](int row, int chunk, int n) {
        const io_t* src = d_out + row * d_out_strides.row + chunk * CHUNK;
        return load_chunk<ALIGNED>(src, n, TENSOR_D_OUT, traffic);
    };
    const auto store = [&](int row, float value) {
        if (row >= q_rows) return;
        delta[row] = value;
        traffic.write(TENSOR_DELTA, 4);
    };
    delta_of_rows(d_out_chunk, out, out_strides.row, q_rows, store, traffic);
}

#if IO_BITS == 16
// dq = dq_sum, rounded: the Q tile of this block. dq may lie as q does, dq_sum is contiguous.
__device__ __forceinline__ void round_tile(const float* dq_sum, io_t* dq, Strides dq_strides,
                                           int nheads, int seqlen_q, int seqlen_k,
                                           Traffic& traffic PACKED_PARAMS) {
    constexpr int CHUNKS = ceil_div(HEAD_DIM, CHUNK);
    constexpr bool WHOLE = HEAD_DIM % CHUNK == 0;  // then rows of both begin at 16 bytes
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);
    const int q0 = blockIdx.x % q_tiles * BLOCK_M, bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    dq_sum += (seq.stats_row0 + q0) * HEAD_DIM;
    dq += seq.batch * dq_strides.batch + head * dq_strides.head +
          (seq.q_row0 + q0) * dq_strides.row;
    for (int i = threadIdx.x; i < q_rows * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, col = i % CHUNKS * CHUNK, n = min(CHUNK, HEAD_DIM - col);
        const float* from = dq_sum + row * HEAD_DIM + col;
        float values[CHUNK] = {};
#pragma unroll
        for (int e = 0; e < CHUNK; e += 4) {
            if (WHOLE) {
                const float4 four = *reinterpret_cast<const float4*>(from + e);
                values[e] = four.x;
                values[e + 1] = four.y;
                values[e + 2] = four.z;
                values[e + 3] = four.w;
                continue;
            }
#pragma unroll
            for (int j = e; j < e + 4; ++j)
                if (j < n) values[j] = from[j];
        }
        traffic.read(TENSOR_DQ, 4 * n);
        store_chunk<WHOLE>(dq + row * dq_strides.row + col, values, n, TENSOR_DQ, traffic);
    }
}
#endif

#if BIAS
// Beyond this |lse| fp32 holds lse only to 6e-5 or worse, and where all the biases of a row are
// finfo.min nothing of log(l). fa_kernels/reference/recompute.py has the same number.
constexpr float LARGE_LSE = 1024.f;

// Whether a row of this Q tile has so large an lse; every thread gets the answer, and each keeps
// the lse of the rows that it will look at again in lse_smem [BLOCK_M].
__device__ __forceinline__ bool any_large(float* lse_smem, const float* lse, int rows,
                                          Traffic& traffic) {
    bool large = false;
    for (int row = threadIdx.x; row < rows; row += THREADS) {
        lse_smem[row] = lse[row];
        traffic.read(TENSOR_LSE, 4);
        large |= fabsf(lse_smem[row]) > LARGE_LSE && fabsf(lse_smem[row]) < INF;
    }
    return __syncthreads_or(large);
}

// row_m and row_scale of one Q tile: lse and 1, or the softmax's own m and 1 / l, which are in
// m_smem and l_smem after `any_large` and the loop that it asked for.
__device__ __forceinline__ void store_statistics(const float* m_smem, const float* l_smem,
                                                 const float* lse_smem, float* row_m,
                                                 float* row_scale, int rows, Traffic& traffic) {
    for (int row = threadIdx.x; row < rows; row += THREADS) {
        const float lse = lse_smem[row];
        const bool large = fabsf(lse) > LARGE_LSE && fabsf(lse) < INF;
        row_m[row] = large ? m_smem[row] : lse;
        row_scale[row] = large ? 1.f / l_smem[row] : 1.f;
        traffic.write(TENSOR_LSE, 8);
    }
}
#endif

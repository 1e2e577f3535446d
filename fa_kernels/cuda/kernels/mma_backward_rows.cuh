// The parts of the backward pass that own rows of Q: dq in a fixed order, and statistics from S.
//
// A warp owns 16 rows or more, and S, dP and dS stay in its registers as in the forward pass. Where
// there are more warps than rows, several share them and take turns with the keys of a tile; what
// each has found is put together at the end, always in the same order.
#pragma once

#include "mma_backward.cuh"

// The fewest fragments of 16 rows a warp must have, if all have as many.
__device__ constexpr int fragments_per_warp() {
    int frags = 1;
    while (BLOCK_M / 16 % frags != 0 || BLOCK_M / 16 / frags > WARPS) ++frags;
    return frags;
}
constexpr int M_FRAGS = fragments_per_warp();
constexpr int ROW_WARPS = BLOCK_M / 16 / M_FRAGS;  // after so many warps the rows begin again
constexpr int SPLITS = WARPS / ROW_WARPS;          // warps that share rows
constexpr int KEYS_AT_ONCE = BLOCK_N % (32 * SPLITS) == 0 ? 32 : 16;
static_assert(SMEM_BYTES >= 4 * BLOCK_M * HEAD_DIM_PAD, "sum_of_splits passes through it");

using RowScores = Fragments<M_FRAGS, KEYS_AT_ONCE / 8>;
using RowGradient = Fragments<M_FRAGS, HEAD_DIM_PAD / 8>;

// Where this lane stands: in its warp, and its warp's rows in a tile; fragments of C are rows by
// keys, or by columns of dq.
struct RowPlace {
    int lane, row0, split;

    __device__ __forceinline__ RowPlace()
        : lane(threadIdx.x % WARP), row0(threadIdx.x / WARP % ROW_WARPS * 16 * M_FRAGS),
          split(threadIdx.x / WARP / ROW_WARPS) {}
    __device__ __forceinline__ int row(int m, int half) const {
        return row0 + 16 * m + 8 * half + lane / 4;
    }
    __device__ __forceinline__ int col(int n) const { return 8 * n + lane % 4 * 2; }
};

// rows . keys of KEYS_AT_ONCE keys: S from Q and K, dP from dO and V.
__device__ __forceinline__ void scores(RowScores& s, unsigned row_tile, unsigned key_tile, int key0,
                                       const RowPlace& at) {
    clear(s);
    const TileReader<> rows = reader_of_a(row_tile, at.row0, 0, at.lane);
    const TileReader<> keys = reader_of_columns(key_tile, key0, at.lane);
#pragma unroll
    for (int k = 0; k < HEAD_DIM_PAD / 16; ++k) {
        unsigned a[M_FRAGS][4];
        read_a(a, rows, k);
        add_columns(s, a, keys, k);
    }
}

// gradient += dS K of one tile; dS before scale.
__device__ __forceinline__ void add_to_rows(RowGradient& gradient, const BackwardSmem& smem,
                                            float scale, const TileMask& mask, const RowPlace& at,
                                            Traffic& traffic) {
    if (at.split >= SPLITS) return;  // a warp too many
    for (int key0 = at.split * KEYS_AT_ONCE; key0 < BLOCK_N; key0 += SPLITS * KEYS_AT_ONCE) {
        RowScores s, dp;
        scores(s, smem.q, smem.k, key0, at);
        scores(dp, smem.d_out, smem.v, key0, at);
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = at.row(m, half);
                const RowNumbers numbers(smem.m(0)[row], BIAS ? smem.row_scale(0)[row] : 1.f);
                const float delta = smem.delta(0)[row];
#pragma unroll
                for (int n = 0; n < KEYS_AT_ONCE / 8; ++n) {
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int key = key0 + at.col(n) + c;
                        float p = probability<false>(s[m][n][2 * half + c], numbers, scale, row,
                                                     key, mask, traffic);
#if DROPOUT
                        if (mask.keeps(row, key))
                            p = marked(p, mask.extras.keep_factor(mask.q0 + row, mask.k0 + key,
                                                                  traffic) != 0.f);
#endif
                        gradient_of_score(p, dp[m][n][2 * half + c], delta, mask);
                    }
                    // Loads of one fragment at a time, as in `probabilities`.
                    if (MASK && BIAS) __syncwarp();
                }
            }
        const TileReader<> keys = reader_of_rows(smem.k, key0, 0, at.lane);
#pragma unroll
        for (int k = 0; k < KEYS_AT_ONCE / 16; ++k) {
            unsigned a[M_FRAGS][4];
            pack_a(a, dp, k);
            add_rows<2>(gradient, a, keys, k);
        }
    }
}

// Adds to the warps of split 0 what the others have, through shared memory of 4 BLOCK_M
// HEAD_DIM_PAD bytes that nobody uses any more.
__device__ __forceinline__ void sum_of_splits(RowGradient& gradient, float* sum_smem,
                                              const RowPlace& at) {
    constexpr int VALUES = M_FRAGS * HEAD_DIM_PAD / 2;
    float* mine = sum_smem + at.row0 / 16 / M_FRAGS * WARP * VALUES + at.lane;
    for (int split = 1; split < SPLITS; ++split) {
        if (at.split == split) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i)
                mine[i * WARP] =
                    gradient[i / (HEAD_DIM_PAD / 2)][i / 4 % (HEAD_DIM_PAD / 8)][i % 4];
        }
        __syncthreads();  // one split's part is there
        if (at.split == 0) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i)
                gradient[i / (HEAD_DIM_PAD / 2)][i / 4 % (HEAD_DIM_PAD / 8)][i % 4] +=
                    mine[i * WARP];
        }
        __syncthreads();  // it has been added before the next takes its place
    }
}

// dq, rounded, to shared memory.
__device__ __forceinline__ void store_row_gradient(unsigned tile, const RowGradient& gradient,
                                                   float factor, const RowPlace& at) {
    if (at.split != 0) return;
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < HEAD_DIM_PAD / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(chunk_address(tile, at.row(m, half), n) + at.lane % 4 * 4,
                             pack(gradient[m][n][2 * half] * factor,
                                  gradient[m][n][2 * half + 1] * factor));
}

#if BIAS
using RowValues = float[M_FRAGS][2];  // a number per row of Q, of this lane's rows

// The softmax's m and l of a warp's rows, of the keys this lane sees until `finish`.
struct RowSoftmax {
    RowValues m, l;

    __device__ __forceinline__ RowSoftmax() {
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i) {
            m[i][0] = m[i][1] = -INF;
            l[i][0] = l[i][1] = 0.f;
        }
    }
    static __device__ __forceinline__ void merge(float& m, float& l, float other_m, float other_l) {
        const float largest = fmaxf(m, other_m);
        // -inf beside -inf: nothing was kept, and the difference would be NaN.
        const float mine = m == -INF ? 0.f : fast_exp2((m - largest) * LOG2E);
        const float others = other_m == -INF ? 0.f : fast_exp2((other_m - largest) * LOG2E);
        l = l * mine + other_l * others;
        m = largest;
    }
    __device__ __forceinline__ void add(const BackwardSmem& smem, float scale, const TileMask& mask,
                                        const RowPlace& at, Traffic& traffic) {
        if (at.split >= SPLITS) return;
        for (int key0 = at.split * KEYS_AT_ONCE; key0 < BLOCK_N; key0 += SPLITS * KEYS_AT_ONCE) {
            RowScores s;
            scores(s, smem.q, smem.k, key0, at);
#pragma unroll
            for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int n = 0; n < KEYS_AT_ONCE / 8; ++n)
#pragma unroll
                        for (int c = 0; c < 2; ++c) {
                            const int row = at.row(i, half), key = key0 + at.col(n) + c;
                            if (!mask.keeps(row, key)) continue;
                            const float score =
                                mask.score(row, key, s[i][n][2 * half + c] * scale, traffic);
                            merge(m[i][half], l[i][half], score, 1.f);
                        }
        }
    }
    // m and l of all keys, to m_smem and l_smem, over all lanes and splits in turn.
    __device__ __forceinline__ void finish(float* m_smem, float* l_smem, const RowPlace& at) {
        for (int split = 0; split < SPLITS; ++split) {
            if (at.split == split) {
#pragma unroll
                for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        for (int offset = 1; offset < 4; offset *= 2) {
                            const float other_m = __shfl_xor_sync(ALL_LANES, m[i][half], offset);
                            const float other_l = __shfl_xor_sync(ALL_LANES, l[i][half], offset);
                            merge(m[i][half], l[i][half], other_m, other_l);
                        }
                        const int row = at.row(i, half);
                        if (split > 0) merge(m[i][half], l[i][half], m_smem[row], l_smem[row]);
                        __syncwarp();  // read by four lanes before one of them writes
                        if (at.lane % 4 == 0) {
                            m_smem[row] = m[i][half];
                            l_smem[row] = l[i][half];
                        }
                    }
            }
            __syncthreads();  // this split's rows are there
        }
    }
};
#endif

// The parts of the backward pass on tensor cores: what a warp does with its keys and a Q tile.
//
// A warp owns WARP_KEYS = 16 or 32 keys and computes S and dP transposed, keys by rows of Q: packed
// to 16 bits they are then the left operands of dV += P^T dO and dK += dS^T Q, without leaving the
// registers. Only dS goes through shared memory, where dQ = dS K finds the keys of all warps. With
// SIDES = 2 or 4 so many warps share their keys: each computes S and dP for a part of the rows and
// dK and dV for a part of the columns, and they exchange P and dS. Where dK and dV of 32 keys are
// too much for one warp, Q and dO are so read half as often as by warps of 16 keys.
// Shared memory holds K, V, the stages of Q and dO, two dS, and three numbers of every row;
// fa_kernels/tiling.py (flash_mma_backward_smem, with_block_mask) states the same layout in Python.
#pragma once

#include "backward.cuh"
#include "block_mask.cuh"
#include "io.cuh"
#include "mma.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma.m16n8k16 and cp.async need sm_80 or later"
#endif

constexpr int WARPS = THREADS / WARP;
constexpr int WARP_KEYS = BLOCK_N * SIDES / WARPS;
constexpr int KEY_FRAGS = WARP_KEYS / 16;                 // of 16 keys
constexpr int SIDE_ROWS = ROWS_AT_ONCE / SIDES;
constexpr int ROW_FRAGS = SIDE_ROWS / 8;                  // of 8 rows of Q
constexpr int D_FRAGS = HEAD_DIM_PAD / SIDES / 8;         // of 8 columns of dK and dV
constexpr int S_CHUNKS = round_up(BLOCK_M / 8, 4);        // of a key in dS^T and P^T
constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM_PAD;       // of Q or dO
constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM_PAD;      // of K or V
constexpr int S_BYTES = 16 * BLOCK_N * S_CHUNKS;          // of dS or P
constexpr int ROW_BYTES = 4 * BLOCK_M;                    // of m, row_scale or delta
constexpr int ROW_ARRAYS = BIAS ? 3 : 2;
constexpr unsigned ALL_LANES = 0xffffffffu;
static_assert(WARP_KEYS * WARPS == BLOCK_N * SIDES && WARP_KEYS % 16 == 0, "whole fragments");
static_assert(BLOCK_M % ROWS_AT_ONCE == 0 && ROWS_AT_ONCE % 16 == 0 && SIDE_ROWS % 8 == 0,
              "whole fragments of rows");
static_assert(STAGES == 1 || STAGES == 2, "Q and dO are single or double buffered");
static_assert(SIDES == 1 || SIDES == 2 || SIDES == 4, "columns are dealt out in powers of two");
static_assert(HEAD_DIM_PAD % (16 * SIDES) == 0, "every side has whole pairs of fragments");
static_assert(SIDES == 1 || WARPS / SIDES < 16, "a barrier for every group of warps");
static_assert(SMEM_BYTES == 2 * KV_BYTES + STAGES * (2 * Q_BYTES + ROW_ARRAYS * ROW_BYTES) +
                                (SIDES > 1 ? 3 : 2) * S_BYTES + 2 * MASK_SMEM_BYTES,
              "SMEM_BYTES does not match the layout: fix tiling.flash_mma_backward_smem or this");

// Addresses in shared memory, as PTX wants them, and one pointer.
struct BackwardSmem {
    unsigned k, v;         // [BLOCK_N, HEAD_DIM], and dk, dv on their way out
    unsigned q, d_out;     // [STAGES, BLOCK_M, HEAD_DIM]
    unsigned ds;           // [2, BLOCK_N, BLOCK_M], transposed
    unsigned p;            // [BLOCK_N, BLOCK_M], transposed, with SIDES > 1
    float* rows;           // [STAGES, ROW_ARRAYS, BLOCK_M], m, delta and with a bias row_scale
    unsigned char* cells;  // [2, CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit BackwardSmem(unsigned char* smem)
        : k(smem_address(smem)), v(k + KV_BYTES), q(v + KV_BYTES), d_out(q + STAGES * Q_BYTES),
          ds(d_out + STAGES * Q_BYTES), p(ds + 2 * S_BYTES),
          rows(reinterpret_cast<float*>(smem + 2 * KV_BYTES + 2 * STAGES * Q_BYTES +
                                        (SIDES > 1 ? 3 : 2) * S_BYTES)),
          cells(reinterpret_cast<unsigned char*>(rows + STAGES * ROW_ARRAYS * BLOCK_M)) {}
    __device__ __forceinline__ const float* m(int stage) const {
        return rows + stage * ROW_ARRAYS * BLOCK_M;
    }
    __device__ __forceinline__ const float* delta(int stage) const { return m(stage) + BLOCK_M; }
    __device__ __forceinline__ const float* row_scale(int stage) const {
        return m(stage) + 2 * BLOCK_M;
    }
    // There are two tables of cells: warps that are still in the visit before look at the other.
    // Visits are counted anew for every head of q.
    __device__ __forceinline__ void turn_cells(int visit) {
        cells = reinterpret_cast<unsigned char*>(rows + STAGES * ROW_ARRAYS * BLOCK_M) +
                visit % 2 * MASK_SMEM_BYTES;
    }
};

// Starts the copy of src[0:rows] to BLOCK_M numbers in shared memory, zero past `rows`.
__device__ __forceinline__ void copy_numbers(const float* to, const float* src, int rows,
                                             int tensor, Traffic& traffic) {
#pragma unroll
    for (int row0 = 0; row0 < BLOCK_M; row0 += THREADS) {
        const int row = row0 + threadIdx.x;
        if (row0 + THREADS > BLOCK_M && row >= BLOCK_M) break;
        const int nbytes = row < rows ? 4 : 0;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_address(to + row)),
                     "l"(src + row), "r"(nbytes)
                     : "memory");
        traffic.read(tensor, nbytes);
    }
}

// What P is rebuilt with for one row: P = exp2(S scale - m) row_scale, in log2 units without a
// bias. Rows that attend nothing have lse -inf: with +inf their P is 0.
struct RowNumbers {
    float m, row_scale;

    __device__ __forceinline__ RowNumbers(float m, float row_scale)
        : m((m == -INF ? INF : m) * (BIAS ? 1.f : LOG2E)), row_scale(row_scale) {}
};

// P of one element from S = q.k, 0 where the mask drops it. ALL: it keeps the whole tile.
template <bool ALL>
__device__ __forceinline__ float probability(float s, const RowNumbers& of, float scale, int row,
                                             int key, const TileMask& mask, Traffic& traffic) {
    const bool inside = ALL || mask.keeps(row, key);
#if BIAS
    const float score = inside ? mask.score(row, key, s * scale, traffic) : -INF;
    return fast_exp2((score - of.m) * LOG2E) * of.row_scale;
#else
    const bool kept = inside && (!MASK || mask.score(row, key, 0.f, traffic) != -INF);
    const float p = fast_exp2(fmaf(s, scale, -of.m));
    return kept ? p : 0.f;
#endif
}

// Between the two, the sign of P says what dropout does to it: P is never negative.
__device__ __forceinline__ float marked(float p, bool kept) {
    return kept ? p : __int_as_float(__float_as_int(p) | 0x80000000);
}

// dS (without scale) in the place of dP = d_out.v, and P as V meets it, without 1 / (1 - p), in the
// place of the marked P.
__device__ __forceinline__ void gradient_of_score(float& p, float& dp, float delta,
                                                  const TileMask& mask) {
#if DROPOUT
    const bool kept = __float_as_int(p) >= 0;
    dp = fabsf(p) * ((kept ? dp * mask.extras.keep_scale : 0.f) - delta);
    p = kept ? p : 0.f;
#else
    dp = p * (dp - delta);
#endif
}

// ---- a warp and its keys ----------------------------------------------------------------------
// Where this lane stands: in its warp, and its warp's keys, rows and columns in a tile. Fragments
// of C are keys by rows, or keys by columns of dK and dV; of those, sides take turns of 16.
struct KeyPlace {
    int lane, warp, key0, side;

    __device__ __forceinline__ KeyPlace()
        : lane(threadIdx.x % WARP), warp(threadIdx.x / WARP),
          key0(threadIdx.x / WARP / SIDES * WARP_KEYS), side(threadIdx.x / WARP % SIDES) {}
    // The same place, of which nothing that was computed before is kept in registers.
    __device__ __forceinline__ KeyPlace again() const {
        KeyPlace same = *this;
        same.lane = not_kept(lane);
        same.warp = not_kept(warp);
        same.key0 = not_kept(key0);
        return same;
    }
    __device__ __forceinline__ int key(int m, int half) const {
        return key0 + 16 * m + 8 * half + lane / 4;
    }
    // The first of two rows, of the rows at once.
    __device__ __forceinline__ int row(int n) const {
        return side * SIDE_ROWS + 8 * n + lane % 4 * 2;
    }
    __device__ __forceinline__ int chunk(int n) const {
        return n / 2 * 2 * SIDES + 2 * side + n % 2;
    }
    // Until the other warps of these keys are here, too.
    __device__ __forceinline__ void meet() const {
        if (SIDES > 1) barrier(1 + warp / SIDES, SIDES * WARP);
    }
};

using Scores = Fragments<KEY_FRAGS, ROW_FRAGS>;
using Gradient = Fragments<KEY_FRAGS, D_FRAGS>;

// keys . rows, transposed: S from K and Q, dP from V and dO.
__device__ __forceinline__ void scores(Scores& s, unsigned key_tile, unsigned row_tile, int row0,
                                       const KeyPlace& at) {
    clear(s);
    const TileReader<> keys = reader_of_a(not_kept(key_tile), at.key0, 0, at.lane);
    const TileReader<> rows =
        reader_of_columns(not_kept(row_tile), row0 + at.side * SIDE_ROWS, at.lane);
    // ldmatrix reads two fragments; for a last one that is alone it reads the same rows twice.
    const TileReader<> alone =
        reader_of_columns(not_kept(row_tile), row0 + at.side * SIDE_ROWS, at.lane % 16);
    multiply<HEAD_DIM_PAD / 16>(
        s, [&](unsigned(&a)[KEY_FRAGS][4], int k) { read_a(a, keys, k); },
        [&](unsigned(&b)[4], int n, int k) {
            ldmatrix(b, (n + 1 < ROW_FRAGS ? rows : alone).at(8 * n, 2 * k));
        });
}

#if DROPOUT == 1
// The draw for fragments m and n of these scores and for one or both fragments beside: each lane
// draws as if fragments were rows by keys, and every word, a row's two keys in each lane, is then
// transposed.
__device__ __forceinline__ uint4 transposed_draw(const TileMask& mask, const KeyPlace& at, int m,
                                                 int rows) {
    const int key = at.key0 + 16 * m + at.lane % 4 * 2;
    const uint4 draw = mask.extras.draw(mask.q0 + rows + at.lane / 4, mask.k0 + key);
    return make_uint4(transposed(draw.x), transposed(draw.y), transposed(draw.z),
                      transposed(draw.w));
}
#endif

// P in the place of S, of the rows from row0 on, marked where dropout drops it.
template <bool ALL>
__device__ __forceinline__ void probabilities(Scores& s, const BackwardSmem& smem, int stage,
                                              int row0, float scale, const TileMask& mask,
                                              const KeyPlace& at, Traffic& traffic) {
#if DROPOUT == 1
    uint4 draws[KEY_FRAGS];
#endif
#pragma unroll
    for (int n = 0; n < ROW_FRAGS; ++n) {
        const int row = row0 + at.row(n);
        const float2 m2 = *reinterpret_cast<const float2*>(smem.m(stage) + row);
        float2 scale2 = make_float2(1.f, 1.f);
        if (BIAS) scale2 = *reinterpret_cast<const float2*>(smem.row_scale(stage) + row);
        const RowNumbers numbers[2] = {{m2.x, scale2.x}, {m2.y, scale2.y}};
#pragma unroll
        for (int m = 0; m < KEY_FRAGS; ++m) {
#if DROPOUT == 1
            // A draw serves two fragments of 8 rows, if this warp has both.
            constexpr bool ALONE = SIDE_ROWS % 16;
            const int rows = row0 + at.side * SIDE_ROWS + 8 * n;
            if (ALONE || n % 2 == 0) draws[m] = transposed_draw(mask, at, m, rows);
            const bool lower = ALONE ? (mask.q0 + rows) / 8 % 2 : n % 2;
            const unsigned words[2] = {lower ? draws[m].y : draws[m].x,
                                       lower ? draws[m].w : draws[m].z};
#endif
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int key = at.key(m, c / 2), r = row + c % 2;
                float& p = s[m][n][c];
                p = probability<ALL>(p, numbers[c % 2], scale, r, key, mask, traffic);
#if DROPOUT == 1
                p = marked(p, !mask.extras.drops(words[c / 2], c % 2));
#elif DROPOUT == 2
                if (ALL || mask.keeps(r, key))
                    p = marked(p, mask.extras.keep_factor(mask.q0 + r, mask.k0 + key, traffic) !=
                                      0.f);
#endif
            }
        }
        // Loads of one fragment at a time: those of all would not fit into the registers.
        if (MASK && BIAS) __syncwarp();
    }
}

// dS in the place of dP, and P as V meets it.
__device__ __forceinline__ void gradients_of_scores(Scores& p, Scores& dp, const BackwardSmem& smem,
                                                    int stage, int row0, const TileMask& mask,
                                                    const KeyPlace& at) {
#pragma unroll
    for (int n = 0; n < ROW_FRAGS; ++n) {
        const float2 delta =
            *reinterpret_cast<const float2*>(smem.delta(stage) + row0 + at.row(n));
#pragma unroll
        for (int m = 0; m < KEY_FRAGS; ++m)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                gradient_of_score(p[m][n][c], dp[m][n][c], c % 2 ? delta.y : delta.x, mask);
    }
}

// P^T or dS^T, rounded, to shared memory.
__device__ __forceinline__ void store_transposed(unsigned tile, const Scores& s, int row0,
                                                 const KeyPlace& at) {
#pragma unroll
    for (int m = 0; m < KEY_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(chunk_address<S_CHUNKS>(tile, at.key(m, half),
                                                     (row0 + at.side * SIDE_ROWS) / 8 + n) +
                                 at.lane % 4 * 4,
                             pack(s[m][n][2 * half], s[m][n][2 * half + 1]));
}

// gradient += S^T rows: dV from P and dO, dK from dS and Q. `tile` is where warps of the same keys
// exchange S^T; a warp alone has all it needs in s.
__device__ __forceinline__ void add_to_keys(Gradient& gradient, const Scores& s, unsigned tile,
                                            unsigned row_tile, int row0, const KeyPlace& at) {
    const TileReader<> rows = reader_of_rows(not_kept(row_tile), row0, 2 * at.side, at.lane);
#if SIDES > 1
    const TileReader<S_CHUNKS> shared = reader_of_a<S_CHUNKS>(tile, at.key0, row0 / 8, at.lane);
#endif
    multiply<ROWS_AT_ONCE / 16>(
        gradient,
        [&](unsigned(&a)[KEY_FRAGS][4], int k) {
#if SIDES > 1
            read_a(a, shared, k);
#else
            pack_a(a, s, k);
#endif
        },
        [&](unsigned(&b)[4], int n, int k) {
            ldmatrix_transposed(b, rows.at(16 * k, n * SIDES));
        });
}

// What one Q tile adds to dk and dv; leaves dS^T in shared memory for dq.
template <bool ALL>
__device__ __forceinline__ void visit_rows(Gradient& dk, Gradient& dv, const BackwardSmem& smem,
                                           int stage, unsigned ds, float scale,
                                           const TileMask& mask, const KeyPlace& place,
                                           Traffic& traffic) {
    const KeyPlace at = SIDES == 2 ? place : place.again();  // elsewhere it would spill
    const unsigned q_tile = smem.q + stage * Q_BYTES, d_out_tile = smem.d_out + stage * Q_BYTES;
#pragma unroll
    for (int row0 = 0; row0 < BLOCK_M; row0 += ROWS_AT_ONCE) {
        Scores p, dp;
        scores(p, smem.k, q_tile, row0, at);
        probabilities<ALL>(p, smem, stage, row0, scale, mask, at, traffic);
        scores(dp, smem.v, d_out_tile, row0, at);
        gradients_of_scores(p, dp, smem, stage, row0, mask, at);
        if (SIDES > 1) store_transposed(smem.p, p, row0, at);
        if (SIDES > 1 || !DETERMINISTIC) store_transposed(ds, dp, row0, at);
        at.meet();
        add_to_keys(dv, p, smem.p, d_out_tile, row0, at);
        add_to_keys(dk, dp, ds, q_tile, row0, at);
#if DETERMINISTIC
        // Only then the next rows: their S and dP at once would not fit into the registers.
        if (row0 + ROWS_AT_ONCE < BLOCK_M) __syncwarp();
#endif
    }
}

// Adds four neighbours to memory, other blocks do the same: in any order. n: how many exist.
__device__ __forceinline__ void add_four(float* to, float4 x, int n, Traffic& traffic) {
    if (n <= 0) return;
    traffic.read(TENSOR_DQ, 4 * n);
    traffic.write(TENSOR_DQ, 4 * n);
#if __CUDA_ARCH__ >= 900 && HEAD_DIM % 4 == 0
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y),
                 "f"(x.z), "f"(x.w)
                 : "memory");
#else
    atomicAdd(to, x.x);
    if (n > 1) atomicAdd(to + 1, x.y);
    if (n > 2) atomicAdd(to + 2, x.z);
    if (n > 3) atomicAdd(to + 3, x.w);
#endif
}

// A warp's fragments of a dq tile, times scale, to memory. ALL: none is past rows or HEAD_DIM.
template <bool ALL, int M, int N>
__device__ __forceinline__ void add_fragments(const Fragments<M, N>& sum, float* dq, float scale,
                                              int rows, int warp_m, int warp_d, const KeyPlace& at,
                                              Traffic& traffic) {
    // Of two fragments side by side a lane has two columns each; with its neighbour it swaps them
    // for four columns of one.
    const int odd = at.lane % 2;
    const int row0 = 16 * warp_m + at.lane / 4, col0 = 16 * warp_d + 8 * odd + at.lane % 4 / 2 * 4;
    float* const to = dq + row0 * HEAD_DIM + col0;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int unit = 0; unit < N / 2; ++unit)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float(&left)[4] = sum[m][2 * unit], (&right)[4] = sum[m][2 * unit + 1];
                const float x = (odd ? right[2 * half] : left[2 * half]) * scale;
                const float y = (odd ? right[2 * half + 1] : left[2 * half + 1]) * scale;
                const float give_x = (odd ? left[2 * half] : right[2 * half]) * scale;
                const float give_y = (odd ? left[2 * half + 1] : right[2 * half + 1]) * scale;
                const float got_x = __shfl_xor_sync(ALL_LANES, give_x, 1);
                const float got_y = __shfl_xor_sync(ALL_LANES, give_y, 1);
                const float4 four = odd ? make_float4(got_x, got_y, x, y)
                                        : make_float4(x, y, got_x, got_y);
                const int row = 16 * DQ_WARPS_M * m + 8 * half, col = 16 * DQ_WARPS_D * unit;
                const int n = ALL || row0 + row < rows ? min(4, HEAD_DIM - col0 - col) : 0;
                add_four(to + row * HEAD_DIM + col, four, ALL ? 4 : n, traffic);
            }
}

// dq[0:rows] += scale dS K, over all keys of the block: DQ_WARPS_M x DQ_WARPS_D warps, each with
// every DQ_WARPS_M-th 16 rows and every DQ_WARPS_D-th 16 columns.
__device__ __forceinline__ void add_dq(unsigned ds_tile, unsigned k_tile, float* dq, float scale,
                                       int rows, const KeyPlace& place, Traffic& traffic) {
    const KeyPlace at = place.again();
    constexpr int M = BLOCK_M / 16 / DQ_WARPS_M, UNITS = HEAD_DIM_PAD / 16 / DQ_WARPS_D;
    static_assert(M * DQ_WARPS_M * 16 == BLOCK_M && UNITS * DQ_WARPS_D * 16 == HEAD_DIM_PAD &&
                      DQ_WARPS_M * DQ_WARPS_D <= WARPS,
                  "all of dq has a warp");
    if (DQ_WARPS_M * DQ_WARPS_D < WARPS && at.warp >= DQ_WARPS_M * DQ_WARPS_D) return;
    const int warp_m = at.warp % DQ_WARPS_M, warp_d = at.warp / DQ_WARPS_M;
    Fragments<M, 2 * UNITS> sum;
    clear(sum);
    const auto ds = reader_of_a_transposed<S_CHUNKS>(not_kept(ds_tile), 0, 2 * warp_m, at.lane);
    const TileReader<> keys = reader_of_rows(not_kept(k_tile), 0, 2 * warp_d, at.lane);
    multiply<BLOCK_N / 16>(
        sum,
        [&](unsigned(&a)[M][4], int k) {
#pragma unroll
            for (int m = 0; m < M; ++m)
                ldmatrix_transposed(a[m], ds.at(16 * k, 2 * DQ_WARPS_M * m));
        },
        [&](unsigned(&b)[4], int n, int k) {
            ldmatrix_transposed(b, keys.at(16 * k, n * DQ_WARPS_D));
        });
    if (HEAD_DIM == HEAD_DIM_PAD && rows >= BLOCK_M)
        add_fragments<true>(sum, dq, scale, rows, warp_m, warp_d, at, traffic);
    else
        add_fragments<false>(sum, dq, scale, rows, warp_m, warp_d, at, traffic);
}

// dk or dv, rounded, to shared memory.
__device__ __forceinline__ void store_gradient(unsigned tile, const Gradient& gradient,
                                               float factor, const KeyPlace& at) {
#pragma unroll
    for (int m = 0; m < KEY_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < D_FRAGS; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(chunk_address(tile, at.key(m, half), at.chunk(n)) + at.lane % 4 * 4,
                             pack(gradient[m][n][2 * half] * factor,
                                  gradient[m][n][2 * half + 1] * factor));
}

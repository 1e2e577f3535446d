// The online softmax of FlashAttention on tensor cores: what a warp does with S between products.
//
// S and O are accumulators of mma.sync (mma.cuh) or of wgmma (hopper.cuh), which lie alike: a warp
// owns WARP_ROWS = 16 or 32 rows of them. With PAIRS two warps share 32 rows: each computes S for
// one half of the keys and O for one half of the columns, and they exchange maxima through shared
// memory.
#pragma once

#include "block_mask.cuh"
#include "io.cuh"
#include "mma.cuh"

constexpr int SIDES = PAIRS ? 2 : 1;  // warps that share rows
constexpr int WARP_ROWS = BLOCK_M * WARP * SIDES / THREADS;
constexpr int M_FRAGS = WARP_ROWS / 16;            // of 16 rows
constexpr int N_FRAGS = BLOCK_N / SIDES / 8;       // of 8 keys
constexpr int D_FRAGS = HEAD_DIM_PAD / SIDES / 8;  // of 8 columns of O
constexpr unsigned ALL_LANES = 0xffffffffu;
static_assert(WARP_ROWS % 16 == 0 && BLOCK_N % (16 * SIDES) == 0, "tiles are whole fragments");

// By how many powers of two a maximum may grow before O is rescaled: fp16 holds 2^15.
#define RESCALE_ABOVE 8.f
// Scores stay bare products, and scale is applied inside exp2; a bias and scales <= 0 need them
// scaled before the maximum is taken.
#define SCALE_FIRST (BIAS || !FOLD_SCALE)

// The accumulators of a warp's rows: [m][n][c], see mma.cuh. Row `half` of fragment m is 16 m +
// 8 half + lane / 4; c = 2 half and 2 half + 1 are its two columns.
template <int FRAGS>
using Rows = Fragments<M_FRAGS, FRAGS>;
using RowValues = float[M_FRAGS][2];

// Where this lane stands: in its warp, and its warp's rows, keys of S and columns of O in a tile.
struct Place {
    int lane, row0, side;

    __device__ __forceinline__ Place()
        : lane(threadIdx.x % WARP), row0(threadIdx.x / WARP / SIDES * WARP_ROWS),
          side(PAIRS ? threadIdx.x / WARP % 2 : 0) {}
    __device__ __forceinline__ int key0() const { return side * (BLOCK_N / SIDES); }
    __device__ __forceinline__ int fragment0() const { return side * D_FRAGS; }
    // Row of half `half` of fragment m; its first column of two in fragment n.
    __device__ __forceinline__ int row(int m, int half) const {
        return row0 + 16 * m + 8 * half + lane / 4;
    }
    __device__ __forceinline__ int key(int n) const { return key0() + 8 * n + lane % 4 * 2; }
    // Until the other warp of the pair is here, too.
    __device__ __forceinline__ void meet() const {
        if (PAIRS) barrier(1 + row0 / WARP_ROWS, 2 * WARP);
    }
    // The other warp's value for a row of a lane's quad; `rows_smem` may be written again after
    // the pair has met once more.
    template <typename Op>
    __device__ __forceinline__ void combine(RowValues& values, float* rows_smem, Op op) const {
        if (!PAIRS) return;
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (lane % 4 == 0) rows_smem[side * BLOCK_M + row(m, half)] = values[m][half];
        meet();
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                values[m][half] =
                    op(values[m][half], rows_smem[(1 - side) * BLOCK_M + row(m, half)]);
    }
};

// Scales where that comes first, adds the bias, and puts -inf where an element is masked.
__device__ __forceinline__ void mask_scores(Rows<N_FRAGS>& s, const TileMask& mask, float scale,
                                            const Place& at, Traffic& traffic) {
    const bool all = mask.keeps_all();
    if (all && !SCALE_FIRST && !MASK) return;
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < N_FRAGS; ++n) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int row = at.row(m, c / 2), col = at.key(n) + c % 2;
                if (SCALE_FIRST) s[m][n][c] = __fmul_rn(s[m][n][c], scale);
                if (!all && !mask.keeps(row, col))
                    s[m][n][c] = -INF;
                else if (MASK || BIAS)
                    s[m][n][c] = mask.score(row, col, s[m][n][c], traffic);
            }
            // Loads of one fragment at a time: those of all would not fit into the registers.
            if (MASK && BIAS) __syncwarp();
        }
}

// One step of the online softmax, in pieces that can stand between the products of the next tile: S
// becomes P, and m, l and O are brought up to date. l holds this lane's columns only: they are
// added up once, at the end.
struct Softmax {
    RowValues m, l, alpha;
    bool any_grows;

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i) {
            m[i][0] = m[i][1] = -INF;
            l[i][0] = l[i][1] = 0.f;
        }
    }
    // m, and l in its terms. Row by row: what a row gives must not depend on its neighbours.
    __device__ __forceinline__ void maxima(const Rows<N_FRAGS>& s, float scale, const Place& at,
                                           float* rows_smem) {
        const float unit = SCALE_FIRST ? UNITS_TO_LOG2 : scale;
        RowValues largest;
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float value = fmaxf(s[i][0][2 * half], s[i][0][2 * half + 1]);
#pragma unroll
                for (int n = 1; n < N_FRAGS; ++n)
                    value = fmaxf(value, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
                largest[i][half] =
                    reduce_lanes(value, 4, [](float a, float b) { return fmaxf(a, b); });
            }
        at.combine(largest, rows_smem, [](float a, float b) { return fmaxf(a, b); });
        any_grows = false;
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // From -inf to -inf the growth is NaN, which is no growth; from -inf to a number
                // alpha is 0.
                const float growth = (largest[i][half] - m[i][half]) * unit;
                const bool grows = growth > (LAZY_RESCALE ? RESCALE_ABOVE : 0.f);
                alpha[i][half] = grows ? fast_exp2(-growth) : 1.f;
                m[i][half] = grows ? largest[i][half] : m[i][half];
                l[i][half] *= alpha[i][half];
                any_grows |= grows;
            }
    }
    // P in the place of S: one of `parts` parts.
    __device__ __forceinline__ void exponentials(Rows<N_FRAGS>& s, float scale, int part,
                                                 int parts) {
#pragma unroll
        for (int f = 0; f < M_FRAGS * N_FRAGS; ++f) {
            if (f * parts / (M_FRAGS * N_FRAGS) != part) continue;
            const int i = f % M_FRAGS, n = f / M_FRAGS;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                // A row that has seen only masked keys has m = -inf; -inf - -inf would be NaN.
                const float m_safe = m[i][c / 2] == -INF ? 0.f : m[i][c / 2];
                float& p = s[i][n][c];
                p = SCALE_FIRST ? fast_exp2((p - m_safe) * UNITS_TO_LOG2)
                                : fast_exp2(fmaf(p, scale, -__fmul_rn(m_safe, scale)));
                l[i][c / 2] += p;
            }
        }
    }
    // O in terms of the new maxima.
    __device__ __forceinline__ void rescale(Rows<D_FRAGS>& o) const {
        if (LAZY_RESCALE && !__any_sync(ALL_LANES, any_grows)) return;
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
            for (int n = 0; n < D_FRAGS; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) o[i][n][c] *= alpha[i][c / 2];
    }
    // lse, and O divided by l; a row with no kept key gives -inf and 0.
    __device__ __forceinline__ void finish(Rows<D_FRAGS>& o, float scale, const Extras& extras,
                                           float* lse, int rows, const Place& at, float* rows_smem,
                                           Traffic& traffic) {
        const float unit = SCALE_FIRST ? UNITS_TO_LN : scale * LN2;
        const auto add = [](float a, float b) { return a + b; };
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) l[i][half] = reduce_lanes(l[i][half], 4, add);
        at.combine(l, rows_smem, add);
#pragma unroll
        for (int i = 0; i < M_FRAGS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float total = l[i][half];
                const int row = at.row(i, half);
                if (row < rows && at.lane % 4 == 0 && at.side == 0) {
                    lse[row] = total == 0.f ? -INF : m[i][half] * unit + logf(total);
                    traffic.write(TENSOR_LSE, 4);
                }
                float factor = total == 0.f ? 0.f : 1.f / total;
#if DROPOUT
                factor *= extras.keep_scale;
#endif
#pragma unroll
                for (int n = 0; n < D_FRAGS; ++n) {
                    o[i][n][2 * half] *= factor;
                    o[i][n][2 * half + 1] *= factor;
                }
            }
    }
};

#if DROPOUT
// Zero where dropout drops; what is kept gets its factor 1 / (1 - p) at the end, with 1 / l.
__device__ __forceinline__ void drop(Rows<N_FRAGS>& p, const TileMask& mask, const Place& at,
                                     Traffic& traffic) {
#if DROPOUT == 1
    static_assert(N_FRAGS % 2 == 0, "a draw serves two fragments");
    uint4 draw;
#endif
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < N_FRAGS; ++n) {
            const int row = at.row(m, 0), col = at.key(n);
#if DROPOUT == 1
            if (n % 2 == 0) draw = mask.extras.draw(mask.q0 + row, mask.k0 + col);
            const unsigned words[2] = {n % 2 ? draw.z : draw.x, n % 2 ? draw.w : draw.y};
#pragma unroll
            for (int c = 0; c < 4; ++c)
                if (mask.extras.drops(words[c / 2], c % 2)) p[m][n][c] = 0.f;
#else
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int r = row + c / 2 * 8, key = col + c % 2;
                if (mask.keeps(r, key) &&
                    mask.extras.keep_factor(mask.q0 + r, mask.k0 + key, traffic) == 0.f)
                    p[m][n][c] = 0.f;
            }
#endif
        }
}
#endif

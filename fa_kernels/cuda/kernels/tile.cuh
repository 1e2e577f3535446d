// The tile code of the CUDA-core rungs: load a tile, S = Q K^T, one online-softmax step, O += P V.
//
// 02, 03 and 04 differ in where S, P and O live and in the order of the loops, never in these
// loops, so a difference between two rungs is one in memory traffic and not in arithmetic.
//
// Tile sizes come as macros: BLOCK_M rows of Q, BLOCK_N rows of K and V, HEAD_DIM columns, THREADS.
// All tiles in shared memory are row-major in 16-byte chunks, swizzled (see `chunk_index`).
#pragma once

#include "io.cuh"
#include "block_mask.cuh"
#include "score.cuh"

static_assert(BLOCK_M >= 1 && BLOCK_N >= 1, "tiles hold at least one row");
static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be in 1..256");
static_assert(THREADS % WARP == 0 && THREADS >= WARP && THREADS <= 1024, "whole warps");

constexpr int HEAD_DIM_PAD = round_up(HEAD_DIM, CHUNK);
constexpr int HEAD_CHUNKS = HEAD_DIM_PAD / CHUNK;
constexpr int BLOCK_N_PAD = round_up(BLOCK_N, 4);  // S rows are fp32: 4 per 16-byte access

// Powers of two near the tile's shape: a thread then owns up to 8 rows of S and of O, and both
// operands of a multiply-add are reused about eight times from registers.
__device__ constexpr int pow2_at_least(int value) {
    int p = 1;
    while (p < value) p *= 2;
    return p;
}
__device__ constexpr int min_int(int a, int b) {
    return a < b ? a : b;
}

// S: a grid of S_TY x S_TX threads; a thread owns rows ty + i S_TY and columns tx + j S_TX.
// No more threads stand in a row than it has columns: the rest would idle.
constexpr int S_TX = min_int(THREADS / min_int(pow2_at_least(ceil_div(BLOCK_M, 8)), THREADS / 16),
                             pow2_at_least(BLOCK_N));
constexpr int S_TY = THREADS / S_TX;
constexpr int S_ROWS = min_int(8, ceil_div(BLOCK_M, S_TY));
constexpr int S_COLS = min_int(4, ceil_div(BLOCK_N, S_TX));

// O: a thread owns rows ty + i O_TY and groups of 4 neighbouring columns 4 (tx + j O_TX).
constexpr int O_GROUPS = ceil_div(HEAD_DIM, 4);
constexpr int O_TX = min_int(pow2_at_least(O_GROUPS), 16);
constexpr int O_TY = THREADS / O_TX;
constexpr int O_COL_GROUPS = ceil_div(O_GROUPS, O_TX);

// 8 lanes per row in the softmax step: a 16-byte access of 8 lanes covers all 32 banks once.
constexpr int ROW_LANES = 8;

// Where chunk c of row r lives. Neighbouring rows that would start in the same banks have their
// chunks exchanged by XOR, so 8 threads reading one chunk of 8 rows hit 8 different bank groups.
// It costs no memory, unlike padding: M stays the sum of the tiles.
constexpr int BANK_GROUPS = HEAD_CHUNKS % 8 == 0   ? 8
                            : HEAD_CHUNKS % 4 == 0 ? 4
                            : HEAD_CHUNKS % 2 == 0 ? 2
                                                   : 1;
__device__ __forceinline__ int chunk_index(int row, int chunk) {
    return row * HEAD_CHUNKS + (chunk ^ (row / (8 / BANK_GROUPS)) % BANK_GROUPS);
}

// tile_smem[ROWS, HEAD_DIM] = src[0:rows_valid, :], zero elsewhere.
template <int ROWS, bool VECTOR>
__device__ __forceinline__ void load_tile(Chunk* tile_smem, const io_t* src, i64 row_stride,
                                          int rows_valid, int tensor, Traffic& traffic) {
    for (int i = threadIdx.x; i < ROWS * HEAD_CHUNKS; i += THREADS) {
        const int row = i / HEAD_CHUNKS, chunk = i % HEAD_CHUNKS;
        const int left = HEAD_DIM - chunk * CHUNK;
        const int n = row < rows_valid ? min(CHUNK, left) : 0;
        tile_smem[chunk_index(row, chunk)] =
            load_chunk<VECTOR>(src + row * row_stride + chunk * CHUNK, n, tensor, traffic);
    }
}

// A B^T, element by element: store(row, col, value) gets each of [BLOCK_M, BLOCK_N] once, always
// from the same thread. a_smem [BLOCK_M, HEAD_DIM], b_smem [BLOCK_N, HEAD_DIM].
template <typename Store>
__device__ __forceinline__ void product_tile(const Chunk* a_smem, const Chunk* b_smem,
                                             Store store) {
    const int ty = threadIdx.x / S_TX, tx = threadIdx.x % S_TX;
    for (int row0 = ty; row0 < BLOCK_M; row0 += S_ROWS * S_TY) {
        for (int col0 = tx; col0 < BLOCK_N; col0 += S_COLS * S_TX) {
            float s_rmem[S_ROWS][S_COLS] = {};
#pragma unroll 1  // a second chunk in flight costs registers, and with them blocks per SM
            for (int c = 0; c < HEAD_CHUNKS; ++c) {
                Chunk a_rmem[S_ROWS], b_rmem[S_COLS];
#pragma unroll
                for (int i = 0; i < S_ROWS; ++i)  // past the edge: re-read the last row, unused
                    a_rmem[i] = a_smem[chunk_index(min(row0 + i * S_TY, BLOCK_M - 1), c)];
#pragma unroll
                for (int j = 0; j < S_COLS; ++j)
                    b_rmem[j] = b_smem[chunk_index(min(col0 + j * S_TX, BLOCK_N - 1), c)];
#pragma unroll
                for (int e = 0; e < CHUNK; ++e)
#pragma unroll
                    for (int i = 0; i < S_ROWS; ++i)
#pragma unroll
                        for (int j = 0; j < S_COLS; ++j)
                            s_rmem[i][j] += element(a_rmem[i], e) * element(b_rmem[j], e);
            }
#pragma unroll
            for (int i = 0; i < S_ROWS; ++i) {
                const int row = row0 + i * S_TY;
#pragma unroll
                for (int j = 0; j < S_COLS; ++j) {
                    const int col = col0 + j * S_TX;
                    if (row < BLOCK_M && col < BLOCK_N) store(row, col, s_rmem[i][j]);
                }
            }
        }
    }
}

// s_smem[BLOCK_M, BLOCK_N] = scale * Q K^T + bias, with -inf where a mask drops the element.
__device__ __forceinline__ void scores_tile(float* s_smem, const Chunk* q_smem, const Chunk* k_smem,
                                            float scale, const TileMask& mask, Traffic& traffic) {
    const bool whole = mask.keeps_all();
    product_tile(q_smem, k_smem, [&](int row, int col, float product) {
        s_smem[row * BLOCK_N_PAD + col] = whole || mask.keeps(row, col)
                                              ? mask.score(row, col, scale * product, traffic)
                                              : -INF;
    });
}

// One online-softmax step on s_smem[BLOCK_M, BLOCK_N], in place S -> P; units as in score.cuh.
// m_smem, l_smem, alpha_smem [BLOCK_M]: running maximum, running sum, factor for the accumulator.
// NORMALISED: the accumulator was divided by the old l, so the factor also undoes that. Dropout
// comes after the softmax: l sums P without it.
template <bool NORMALISED = false>
__device__ __forceinline__ void softmax_tile(float* s_smem, float* m_smem, float* l_smem,
                                             float* alpha_smem, const TileMask& mask,
                                             Traffic& traffic) {
    constexpr int STEP = THREADS / ROW_LANES;  // rows in flight
    const int lane = threadIdx.x % ROW_LANES;
    // Whole warps stay in the loop (round_up), since the shuffles below need all lanes; a row past
    // the tile has no columns. Where STEP divides BLOCK_M, `valid` is true at compile time.
    for (int row = threadIdx.x / ROW_LANES; row < round_up(BLOCK_M, STEP); row += STEP) {
        const bool valid = BLOCK_M % STEP == 0 || row < BLOCK_M;
        const int cols = valid ? BLOCK_N : 0;
        float* s_row = s_smem + row * BLOCK_N_PAD;
        float m_tile = -INF;
        for (int col = lane * 4; col < cols; col += ROW_LANES * 4) {
            const float4 s = *reinterpret_cast<const float4*>(s_row + col);
            m_tile = fmaxf(m_tile, s.x);
            if (col + 1 < BLOCK_N) m_tile = fmaxf(m_tile, s.y);
            if (col + 2 < BLOCK_N) m_tile = fmaxf(m_tile, s.z);
            if (col + 3 < BLOCK_N) m_tile = fmaxf(m_tile, s.w);
        }
        m_tile = reduce_lanes(m_tile, ROW_LANES, [](float a, float b) { return fmaxf(a, b); });
        const float m_old = valid ? m_smem[row] : -INF;
        const float m_new = fmaxf(m_old, m_tile);
        // A row that has seen only masked keys has m = -inf; -inf - -inf would be NaN.
        const float m_safe = m_new == -INF ? 0.f : m_new;
        float l_tile = 0.f;
        for (int col = lane * 4; col < cols; col += ROW_LANES * 4) {
            float4 p = *reinterpret_cast<const float4*>(s_row + col);
            p.x = exp_units(p.x - m_safe);
            p.y = col + 1 < BLOCK_N ? exp_units(p.y - m_safe) : 0.f;
            p.z = col + 2 < BLOCK_N ? exp_units(p.z - m_safe) : 0.f;
            p.w = col + 3 < BLOCK_N ? exp_units(p.w - m_safe) : 0.f;
            l_tile += (p.x + p.y) + (p.z + p.w);
            *reinterpret_cast<float4*>(s_row + col) = mask.dropped(row, col, p, traffic);
        }
        l_tile = reduce_lanes(l_tile, ROW_LANES, [](float a, float b) { return a + b; });
        // The eight lanes read m_smem[row] above; none may still do so when lane 0 overwrites it.
        __syncwarp();
        if (valid && lane == 0) {
            const float alpha = exp_units(m_old - m_safe), l_old = l_smem[row];
            m_smem[row] = m_new;
            l_smem[row] = l_old * alpha + l_tile;
            alpha_smem[row] = NORMALISED ? l_old * alpha : alpha;
        }
    }
}

// Four neighbouring columns of one row of a tile in shared memory, as fp32.
__device__ __forceinline__ float4 load_columns(const Chunk* tile_smem, int row, int group) {
#if IO_BITS == 16
    const uint2* halves = reinterpret_cast<const uint2*>(&tile_smem[chunk_index(row, group / 2)]);
    const uint2 bits = halves[group % 2];
    return make_float4(to_float(io_t(bits.x & 0xffffu)), to_float(io_t(bits.x >> 16)),
                       to_float(io_t(bits.y & 0xffffu)), to_float(io_t(bits.y >> 16)));
#else
    return *reinterpret_cast<const float4*>(&tile_smem[chunk_index(row, group)]);
#endif
}

// n = 1..4 neighbouring elements at `src` as fp32, zero past n; VECTOR says four are aligned.
template <bool VECTOR>
__device__ __forceinline__ float4 load_four(const float* src, int n) {
    if (VECTOR && n == 4) return *reinterpret_cast<const float4*>(src);
    return make_float4(src[0], n > 1 ? src[1] : 0.f, n > 2 ? src[2] : 0.f, n > 3 ? src[3] : 0.f);
}

template <bool VECTOR>
__device__ __forceinline__ void store_four(float* dst, const float4& a, int n) {
    if (VECTOR && n == 4) {
        *reinterpret_cast<float4*>(dst) = a;
        return;
    }
    dst[0] = a.x;
    if (n > 1) dst[1] = a.y;
    if (n > 2) dst[2] = a.z;
    if (n > 3) dst[3] = a.w;
}

#if IO_BITS == 16
template <bool VECTOR>
__device__ __forceinline__ float4 load_four(const io_t* src, int n) {
    if (VECTOR && n == 4) {
        const uint2 bits = *reinterpret_cast<const uint2*>(src);
        return make_float4(to_float(io_t(bits.x & 0xffffu)), to_float(io_t(bits.x >> 16)),
                           to_float(io_t(bits.y & 0xffffu)), to_float(io_t(bits.y >> 16)));
    }
    return make_float4(to_float(src[0]), n > 1 ? to_float(src[1]) : 0.f,
                       n > 2 ? to_float(src[2]) : 0.f, n > 3 ? to_float(src[3]) : 0.f);
}

template <bool VECTOR>
__device__ __forceinline__ void store_four(io_t* dst, const float4& a, int n) {
    const io_t x = from_float(a.x), y = from_float(a.y), z = from_float(a.z), w = from_float(a.w);
    if (VECTOR && n == 4) {
        *reinterpret_cast<uint2*>(dst) = make_uint2(x | y << 16, z | w << 16);
        return;
    }
    dst[0] = x;
    if (n > 1) dst[1] = y;
    if (n > 2) dst[2] = z;
    if (n > 3) dst[3] = w;
}
#endif

// An fp32 tile [ROWS, HEAD_DIM] in registers, spread over the block: O, and in the backward pass
// dq (ROWS = BLOCK_M), dk and dv (ROWS = BLOCK_N).
template <int ROWS>
struct Accumulator {
    static constexpr int O_ROWS = ceil_div(ROWS, O_TY);
    static_assert(O_ROWS * O_COL_GROUPS * 4 <= 128, "the tile does not fit in registers");
    float4 acc[O_ROWS][O_COL_GROUPS];

    static __device__ __forceinline__ int row(int i) { return threadIdx.x / O_TX + i * O_TY; }
    static __device__ __forceinline__ int group(int j) { return threadIdx.x % O_TX + j * O_TX; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < O_ROWS; ++i)
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) acc[i][j] = make_float4(0.f, 0.f, 0.f, 0.f);
    }

    // acc[row] *= factor_smem[row]
    __device__ __forceinline__ void scale_rows(const float* factor_smem) {
#pragma unroll
        for (int i = 0; i < O_ROWS; ++i) {
            const float f = factor_smem[min(row(i), ROWS - 1)];
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                float4& a = acc[i][j];
                a = make_float4(a.x * f, a.y * f, a.z * f, a.w * f);
            }
        }
    }

    // acc[row] /= divisor_smem[row]; rows without a kept key have divisor 0 and become 0.
    __device__ __forceinline__ void divide_rows(const float* divisor_smem) {
#pragma unroll
        for (int i = 0; i < O_ROWS; ++i) {
            const float divisor = divisor_smem[min(row(i), ROWS - 1)];
            const float f = divisor == 0.f ? 0.f : 1.f / divisor;
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                float4& a = acc[i][j];
                a = make_float4(a.x * f, a.y * f, a.z * f, a.w * f);
            }
        }
    }

    // acc += P V, with p_smem[ROWS, BLOCK_N] in fp32 and v_smem[BLOCK_N, HEAD_DIM]. Columns
    // n_end..BLOCK_N of P are zero, so the loop may stop there.
    __device__ __forceinline__ void add_product(const float* p_smem, const Chunk* v_smem,
                                                int n_end) {
        static_assert(ROWS == BLOCK_M, "P has a row for every row of the accumulator");
        for (int n = 0; n < n_end; n += 4) {
            float4 p_rmem[O_ROWS];
#pragma unroll
            for (int i = 0; i < O_ROWS; ++i)
                p_rmem[i] = *reinterpret_cast<const float4*>(
                    p_smem + min(row(i), ROWS - 1) * BLOCK_N_PAD + n);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (BLOCK_N % 4 != 0 && n + e >= BLOCK_N) break;  // V has no such row
#pragma unroll
                for (int j = 0; j < O_COL_GROUPS; ++j) {
                    const int g = min(group(j), O_GROUPS - 1);
                    const float4 v = load_columns(v_smem, n + e, g);
#pragma unroll
                    for (int i = 0; i < O_ROWS; ++i) {
                        const float p = e == 0   ? p_rmem[i].x
                                        : e == 1 ? p_rmem[i].y
                                        : e == 2 ? p_rmem[i].z
                                                 : p_rmem[i].w;
                        float4& a = acc[i][j];
                        a.x += p * v.x;
                        a.y += p * v.y;
                        a.z += p * v.z;
                        a.w += p * v.w;
                    }
                }
            }
        }
    }

    // acc += P^T X, with p_smem[BLOCK_M, BLOCK_N] in fp32 and x_smem[BLOCK_M, HEAD_DIM], over the
    // first m_end rows of both.
    __device__ __forceinline__ void add_transposed_product(const float* p_smem,
                                                           const Chunk* x_smem, int m_end) {
        static_assert(ROWS == BLOCK_N, "P has a column for every row of the accumulator");
        for (int m = 0; m < m_end; ++m) {
            float p_rmem[O_ROWS];
#pragma unroll
            for (int i = 0; i < O_ROWS; ++i)
                p_rmem[i] = p_smem[m * BLOCK_N_PAD + min(row(i), ROWS - 1)];
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                const float4 x = load_columns(x_smem, m, min(group(j), O_GROUPS - 1));
#pragma unroll
                for (int i = 0; i < O_ROWS; ++i) {
                    float4& a = acc[i][j];
                    a.x += p_rmem[i] * x.x;
                    a.y += p_rmem[i] * x.y;
                    a.z += p_rmem[i] * x.z;
                    a.w += p_rmem[i] * x.w;
                }
            }
        }
    }

    // acc = src[0:rows_valid, :], a tile that an earlier pass stored as T; zero past its edge.
    template <bool VECTOR, typename T>
    __device__ __forceinline__ void load(const T* src, i64 row_stride, int rows_valid, int tensor,
                                         Traffic& traffic) {
#pragma unroll
        for (int i = 0; i < O_ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                const int col = group(j) * 4;
                const int n = row(i) < rows_valid ? min(4, HEAD_DIM - col) : 0;
                acc[i][j] = n > 0 ? load_four<VECTOR>(src + row(i) * row_stride + col, n)
                                  : make_float4(0.f, 0.f, 0.f, 0.f);
                if (n > 0) traffic.read(tensor, n * static_cast<int>(sizeof(T)));
            }
        }
    }

    // dst[0:rows_valid, :] = acc, rounded to T.
    template <bool VECTOR, typename T>
    __device__ __forceinline__ void store(T* dst, i64 row_stride, int rows_valid, int tensor,
                                          Traffic& traffic) const {
#pragma unroll
        for (int i = 0; i < O_ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                const int col = group(j) * 4;
                const int n = row(i) < rows_valid ? min(4, HEAD_DIM - col) : 0;
                if (n > 0) store_four<VECTOR>(dst + row(i) * row_stride + col, acc[i][j], n);
                if (n > 0) traffic.write(tensor, n * static_cast<int>(sizeof(T)));
            }
        }
    }
};

using OTile = Accumulator<BLOCK_M>;

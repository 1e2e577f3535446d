// The parts of the backward pass on wgmma: who loads what and when, and what a warpgroup does.
//
// A block owns BLOCK_N = 128 keys. Two warpgroups compute, each with 64 of the keys, and one warp
// of a third fetches: Q and dO of the Q tiles by TMA, the numbers of their rows by hand. As S and
// dP are computed transposed, P^T and dS^T are left operands of dV += P^T dO and dK += dS^T Q where
// they were made, in registers. Only dS goes to shared memory, where dQ = dS K finds all keys.
// Shared memory holds K, V, the stages of Q and dO, two dS, and what else a stage carries;
// fa_kernels/tiling.py (flash_wgmma_backward_smem, with_block_mask) states the same layout.
#pragma once

#include "backward.cuh"
#include "block_mask.cuh"
#include "hopper.cuh"
#include "io.cuh"
#include "mma.cuh"
#include "tile_queue.cuh"

#if BIAS || PACKED
#error "no bias and no packed sequences here: use 05_flash_mma_backward"
#endif

constexpr int GROUPS = THREADS / WARPGROUP;        // warpgroups that compute
constexpr int GROUP_KEYS = 64;                     // rows of a wgmma
constexpr int WARPS = THREADS / WARP;              // of those that compute
constexpr int SLABS = HEAD_DIM_PAD / SLAB_COLS;    // of Q, K, V and dO
constexpr int D_STEPS = ceil_div(HEAD_DIM, 16);    // products over d: columns past it are zeros
constexpr int ROW_FRAGS = BLOCK_M / 8;             // of 8 rows of Q
constexpr int D_FRAGS = HEAD_DIM_PAD / 8;          // of 8 columns of dK and dV
constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM_PAD;
constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM_PAD;
constexpr int DS_BYTES = 2 * BLOCK_N * BLOCK_M;
constexpr int PIECE = 64 * 64;                     // numbers of dq that a warpgroup adds a visit
constexpr int DQ_BYTES = DQ_BULK ? 4 * GROUPS * PIECE : 0;
constexpr int BARRIERS = 2 * STAGES + 2;
constexpr unsigned ALL_LANES = 0xffffffffu;
static_assert(GROUPS == 2 && BLOCK_N == GROUPS * GROUP_KEYS, "64 keys for either warpgroup");
static_assert(HEAD_DIM_PAD == 64 || HEAD_DIM_PAD == 128, "wgmma of 64 or 128 columns");
static_assert(BLOCK_M * HEAD_DIM_PAD == GROUPS * PIECE, "half of dq is 64 x 64");
static_assert(HEAD_DIM % 8 == 0 && ALIGNED, "what TMA can read");
static_assert(SMEM_BYTES == 2 * KV_BYTES + 2 * STAGES * Q_BYTES + 2 * DS_BYTES + DQ_BYTES +
                                STAGES * (8 * BLOCK_M + 16 + MASK_SMEM_BYTES) + 8 * BARRIERS,
              "SMEM_BYTES does not match the layout: fix tiling.flash_wgmma_backward_smem or this");

// What a stage is about, beside Q and dO; q0 < 0: there is no more.
struct __align__(16) Visit {
    int q0, head, flags, k0;
};

// Addresses in shared memory, as PTX wants them, and pointers to what threads read and write.
struct BackwardSmem {
    unsigned k, v;         // [BLOCK_N, HEAD_DIM_PAD], and dk, dv on their way out
    unsigned q, d_out;     // [STAGES, BLOCK_M, HEAD_DIM_PAD]
    unsigned ds;           // [2, BLOCK_N, BLOCK_M], transposed
    unsigned dq;           // [GROUPS, PIECE] on its way out, with DQ_BULK
    unsigned barriers;     // full and empty of every stage, K and V, dS
    float* rows;           // [STAGES, 2, BLOCK_M], lse in log2 units and delta
    Visit* visits;         // [STAGES]
    unsigned char* cells;  // [STAGES, CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit BackwardSmem(unsigned char* smem)
        : k(smem_address(smem)), v(k + KV_BYTES), q(v + KV_BYTES), d_out(q + STAGES * Q_BYTES),
          ds(d_out + STAGES * Q_BYTES), dq(ds + 2 * DS_BYTES),
          barriers(k + SMEM_BYTES - 8 * BARRIERS),
          rows(reinterpret_cast<float*>(smem + 2 * KV_BYTES + 2 * STAGES * Q_BYTES + 2 * DS_BYTES +
                                        DQ_BYTES)),
          visits(reinterpret_cast<Visit*>(rows + STAGES * 2 * BLOCK_M)),
          cells(reinterpret_cast<unsigned char*>(visits + STAGES)) {}
    __device__ __forceinline__ float* lse(int stage) const { return rows + stage * 2 * BLOCK_M; }
    __device__ __forceinline__ float* delta(int stage) const { return lse(stage) + BLOCK_M; }
    __device__ __forceinline__ unsigned char* cells_of(int stage) const {
        return cells + stage * MASK_SMEM_BYTES;
    }
    // Complete when a stage is there: TMA's bytes, and what the warp that fetches wrote.
    __device__ __forceinline__ unsigned full(int stage) const { return barriers + 8 * stage; }
    // Complete when every warp is done with a stage.
    __device__ __forceinline__ unsigned empty(int stage) const {
        return barriers + 8 * (STAGES + stage);
    }
    __device__ __forceinline__ unsigned kv_full() const { return barriers + 8 * 2 * STAGES; }
    // Complete when the dS of all warps of a visit is there.
    __device__ __forceinline__ unsigned ds_full() const { return kv_full() + 8; }

    __device__ __forceinline__ void init_barriers() const {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), 1 + WARP_ARRIVALS);
            mbarrier_init(empty(stage), WARPS * WARP_ARRIVALS);
        }
        mbarrier_init(kv_full(), 1);
        mbarrier_init(ds_full(), WARPS * WARP_ARRIVALS);
        mbarrier_init_fence();
    }
};

// ---- the warp that fetches --------------------------------------------------------------------
// lse in log2 units and delta of the rows of a tile. Rows that attend nothing (lse -inf) and rows
// past the end get +inf, so that P and dS are 0 there. A lane loads early and stores late: what it
// loads is on its way while the stage is still in use.
struct RowNumbers {
    static constexpr int EACH = BLOCK_M / WARP;
    float lse[EACH], delta[EACH];

    __device__ __forceinline__ void load(const float* lse_rows, const float* delta_rows, int rows,
                                         int lane, Traffic& traffic) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int row = i * WARP + lane;
            lse[i] = row < rows ? lse_rows[row] : -INF;
            delta[i] = row < rows ? delta_rows[row] : 0.f;
            if (row >= rows) continue;
            traffic.read(TENSOR_LSE, 4);
            traffic.read(TENSOR_DELTA, 4);
        }
    }
    __device__ __forceinline__ void store(float* lse_smem, float* delta_smem, int lane) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            lse_smem[i * WARP + lane] = lse[i] == -INF ? INF : lse[i] * LOG2E;
            delta_smem[i * WARP + lane] = delta[i];
        }
    }
};

#if BLOCK_SPARSE
// The blocks of the mask that a tile touches which it cuts, by one warp: `load_cells` is for all
// threads.
__device__ __forceinline__ void fetch_cells(unsigned char* cells_smem, const BlockMask& mask,
                                            int flags, int q0, int rows, int k0, int keys,
                                            int lane, Traffic& traffic) {
#if CUTS_TILES
    if (!(flags & FLAG_MIXED)) return;
    const int row0 = q0 / MASK_BLOCK_M, col0 = k0 / MASK_BLOCK_N;
    const int cell_rows = (q0 + rows - 1) / MASK_BLOCK_M - row0 + 1;
    const int cell_cols = (k0 + keys - 1) / MASK_BLOCK_N - col0 + 1;
#pragma unroll 1
    for (int i = lane; i < cell_rows * cell_cols; i += WARP) {
        const int row = i / cell_cols, col = i % cell_cols;
        cells_smem[row * CELL_COLS + col] = mask.keep[i64(row0 + row) * mask.k_blocks + col0 + col];
        traffic.read(TENSOR_MASK, 1);
    }
#endif
}
#endif

// ---- products ---------------------------------------------------------------------------------
using Scores = float[ROW_FRAGS][4];             // 64 keys by rows of Q
using Gradient = float[D_FRAGS][4];             // 64 keys by columns of dK or dV
using RowPiece = float[8][4];                   // 64 rows by 64 columns of dQ
using LeftOperand = unsigned[BLOCK_M / 16][4];  // P^T or dS^T in the io dtype

// keys . rows, transposed: S from K and Q, dP from V and dO. A group of products of its own.
__device__ __forceinline__ void scores(Scores& s, unsigned keys, unsigned rows) {
    const Operand a = operand_along_rows(keys), b = operand_along_rows(rows);
#pragma unroll
    for (int k = 0; k < D_STEPS; ++k)
        wgmma<0, 0>(s, a.at(step_along_rows<BLOCK_N>(k)), b.at(step_along_rows<BLOCK_M>(k)), k > 0);
    wgmma_commit();
}
// gradient += S^T rows: dV from P and dO, dK from dS and Q.
__device__ __forceinline__ void add_to_keys(Gradient& gradient, const LeftOperand& s,
                                            unsigned rows) {
    const Operand b = operand_down_columns<BLOCK_M>(rows);
#pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k)
        wgmma<1>(gradient, s[k], b.at(step_down_columns(k)), true);
}
// dq = dS K of 64 rows and 64 columns, over all keys of the block.
__device__ __forceinline__ void row_gradient(RowPiece& dq, unsigned ds, unsigned keys) {
    const Operand a = operand_down_columns<BLOCK_N>(ds), b = operand_down_columns<BLOCK_N>(keys);
#pragma unroll
    for (int k = 0; k < BLOCK_N / 16; ++k)
        wgmma<1, 1>(dq, a.at(step_down_columns(k)), b.at(step_down_columns(k)), k > 0);
    wgmma_commit();
}
__device__ __forceinline__ void pack(LeftOperand& a, const Scores& s) {
#pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[k][i] = pack(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

// ---- a warpgroup and its keys -----------------------------------------------------------------
// Where this thread stands. Fragments are keys by rows of Q, or keys by columns of dK and dV.
struct KeyPlace {
    int lane, group, key0;  // key0: the first of its warp's 16 keys in the tile

    __device__ __forceinline__ KeyPlace()
        : lane(threadIdx.x % WARP),
          // Of all lanes alike, as the compiler then knows: descriptors are made once for a warp.
          group(__shfl_sync(ALL_LANES, threadIdx.x / WARPGROUP, 0)),
          key0(threadIdx.x / WARP * 16) {}
    // The same place, of which nothing that was computed before is kept in registers.
    __device__ __forceinline__ KeyPlace again() const {
        KeyPlace same = *this;
        same.lane = not_kept(lane);
        same.key0 = not_kept(key0);
        return same;
    }
    __device__ __forceinline__ int key(int half) const { return key0 + 8 * half + lane / 4; }
    // The first of two rows.
    __device__ __forceinline__ int row(int n) const { return 8 * n + lane % 4 * 2; }
};

// The mask of a tile that is cut looks at what was fetched of it.
__device__ __forceinline__ void look_at_cells(TileMask& mask, const Visit& visit,
                                              const unsigned char* cells_smem) {
#if CUTS_TILES
    if (!(visit.flags & FLAG_MIXED)) return;
    mask.cells_smem = cells_smem;
    mask.row0 = visit.q0 % MASK_BLOCK_M;
    mask.col0 = visit.k0 % MASK_BLOCK_N;
#endif
}

// P of one element from S = q.k, 0 where the mask drops it. ALL: it keeps the whole tile.
template <bool ALL>
__device__ __forceinline__ float probability(float s, float lse, float scale, int row, int key,
                                             const TileMask& mask, Traffic& traffic) {
    const bool inside = ALL || mask.keeps(row, key);
    const bool kept = inside && (!MASK || mask.score(row, key, 0.f, traffic) != -INF);
    const float p = fast_exp2(fmaf(s, scale, -lse));
    return kept ? p : 0.f;
}
// Between P and dS the sign of P says what dropout does to it: P is never negative.
__device__ __forceinline__ float marked(float p, bool kept) {
    return kept ? p : __int_as_float(__float_as_int(p) | 0x80000000);
}

// P in the place of S, marked where dropout drops it.
template <bool ALL>
__device__ __forceinline__ void probabilities(Scores& s, const float* lse, float scale,
                                              const TileMask& mask, const KeyPlace& place,
                                              Traffic& traffic) {
#if DROPOUT == 1
    uint4 draw;
#endif
#pragma unroll
    for (int n = 0; n < ROW_FRAGS; ++n) {
        // Addresses of one fragment at a time: those of all would not fit into the registers.
        const KeyPlace at = READS_ELEMENTS ? place.again() : place;
        const float2 lse2 = *reinterpret_cast<const float2*>(lse + at.row(n));
#if DROPOUT == 1
        // A draw serves two fragments of 8 rows. Each lane draws as if fragments were rows by keys,
        // and every word, a row's two keys in each lane, is then transposed.
        if (n % 2 == 0) {
            const uint4 words = mask.extras.draw(mask.q0 + 8 * n + at.lane / 4,
                                                 mask.k0 + at.key0 + at.lane % 4 * 2);
            draw = make_uint4(transposed(words.x), transposed(words.y), transposed(words.z),
                              transposed(words.w));
        }
        const unsigned words[2] = {n % 2 ? draw.y : draw.x, n % 2 ? draw.w : draw.z};
#endif
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int row = at.row(n) + c % 2, key = at.key(c / 2);
            float& p = s[n][c];
            p = probability<ALL>(p, c % 2 ? lse2.y : lse2.x, scale, row, key, mask, traffic);
#if DROPOUT == 1
            p = marked(p, !mask.extras.drops(words[c / 2], c % 2));
#elif DROPOUT == 2
            if (ALL || mask.keeps(row, key))
                p = marked(p,
                           mask.extras.keep_factor(mask.q0 + row, mask.k0 + key, traffic) != 0.f);
#endif
        }
        if (READS_ELEMENTS) __syncwarp();  // nor would what is loaded from them
    }
}

// P as V meets it, without dropout's 1 / (1 - p).
__device__ __forceinline__ void pack_kept(LeftOperand& a, const Scores& p) {
#if DROPOUT
#pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* pair = p[2 * k + i / 2] + i % 2 * 2;
            a[k][i] = pack(fmaxf(pair[0], 0.f), fmaxf(pair[1], 0.f));
        }
#else
    pack(a, p);
#endif
}

// dS, without scale, in the place of dP.
__device__ __forceinline__ void gradients_of_scores(Scores& dp, const Scores& p, const float* delta,
                                                    const TileMask& mask, const KeyPlace& at) {
#pragma unroll
    for (int n = 0; n < ROW_FRAGS; ++n) {
        const float2 delta2 = *reinterpret_cast<const float2*>(delta + at.row(n));
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float of_row = c % 2 ? delta2.y : delta2.x;
#if DROPOUT
            const bool kept = __float_as_int(p[n][c]) >= 0;
            const float kept_dp = kept ? dp[n][c] * mask.extras.keep_scale : 0.f;
            dp[n][c] = fabsf(p[n][c]) * (kept_dp - of_row);
#else
            dp[n][c] = p[n][c] * (dp[n][c] - of_row);
#endif
        }
    }
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. ldmatrix reversed.
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
// dS^T of this warp's keys to shared memory, for the products of both warpgroups.
__device__ __forceinline__ void store_ds(unsigned tile, const LeftOperand& ds, const KeyPlace& at) {
    const int key = at.key0 + at.lane % 16;
#pragma unroll
    for (int k = 0; k < BLOCK_M / 16; ++k)
        stmatrix(slab_chunk<BLOCK_N>(tile, key, 2 * k + at.lane / 16), ds[k]);
}

// ---- dq ---------------------------------------------------------------------------------------
// dq_sum holds dq of a Q tile in two pieces, each as its warpgroup has it in registers: fragment by
// fragment, four numbers of every thread. So additions are of whole lines, without a shuffle.
__device__ __forceinline__ void add_four(float* to, const float (&x)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}
// Where a piece lies in its tile: the second has the lower rows, or the right columns.
__device__ constexpr int piece_row(int piece) {
    return SLABS == 1 ? 64 * piece : 0;
}
__device__ constexpr int piece_col(int piece) {
    return SLABS == 1 ? 0 : 64 * piece;
}

// Adds a piece to memory, other blocks do the same: in any order. rows: how many the tile has.
__device__ __forceinline__ void add_dq(float* to, const RowPiece& dq, int rows,
                                       const BackwardSmem& smem, const KeyPlace& at,
                                       Traffic& traffic) {
    const int thread = threadIdx.x % WARPGROUP;
#if DQ_BULK
    const unsigned piece = smem.dq + at.group * 4 * PIECE;
    if (thread == 0) bulk_wait_read();
    barrier(2 + at.group, WARPGROUP);  // what was added last has left this place
#pragma unroll
    for (int n = 0; n < 8; ++n)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(piece + 16 * thread +
                                                                      16 * WARPGROUP * n),
                     "f"(dq[n][0]), "f"(dq[n][1]), "f"(dq[n][2]), "f"(dq[n][3])
                     : "memory");
    fence_for_async();
    barrier(2 + at.group, WARPGROUP);  // the piece is complete
    if (thread == 0) {
        bulk_add(to, piece, 4 * PIECE);
        bulk_commit();
    }
#else
#pragma unroll
    for (int n = 0; n < 8; ++n) add_four(to + 4 * (thread + WARPGROUP * n), dq[n]);
#endif
    if (thread == 0) {  // of what exists: the rest of a tile is zeros
        const int here = max(0, min(64, rows - piece_row(at.group)));
        const int cols = max(0, min(64, HEAD_DIM - piece_col(at.group)));
        traffic.read(TENSOR_DQ, 4 * here * cols);
        traffic.write(TENSOR_DQ, 4 * here * cols);
    }
}

// dk or dv, rounded, to shared memory.
__device__ __forceinline__ void store_gradient(unsigned tile, const Gradient& gradient,
                                               float factor, const KeyPlace& at) {
#pragma unroll
    for (int n = 0; n < D_FRAGS; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_shared(chunk_address(tile, at.key(half), n) + at.lane % 4 * 4,
                         pack(gradient[n][2 * half] * factor, gradient[n][2 * half + 1] * factor));
}

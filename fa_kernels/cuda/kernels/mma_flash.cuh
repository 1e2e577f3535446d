// The parts of FlashAttention on tensor cores: what a warp does with its rows of Q and a K/V tile.
//
// A warp owns WARP_ROWS = 16 or 32 rows; S, P and O live in its registers as accumulators of
// mma.cuh. With PAIRS two warps share 32 rows: each computes S for one half of the keys and O for
// one half of the columns, and they exchange maxima and P through shared memory. Where O of 32 rows
// is too much for one warp, K and V are so read half as often as by warps of 16 rows.
// Shared memory holds Q, the stages of K and V, and the cells of a block mask;
// fa_kernels/tiling.py (flash_mma_smem, with_block_mask) states the same layout in Python.
#pragma once

#include "block_mask.cuh"
#include "io.cuh"
#include "mma.cuh"
#include "mma_softmax.cuh"

constexpr int P_CHUNKS = BLOCK_N / 8;
constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM_PAD;
constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM_PAD;
constexpr int P_BYTES = PAIRS ? 2 * BLOCK_M * BLOCK_N : 0;
constexpr int ROW_BYTES = PAIRS ? 4 * SIDES * BLOCK_M : 0;
static_assert(STAGES == 1 || STAGES == 2, "K and V are single or double buffered");
static_assert(!OVERLAP || STAGES == 2, "to compute S ahead, K has to be there");
static_assert(!PAIRS || (P_CHUNKS % 4 == 0 && BLOCK_M / WARP_ROWS < 16), "one barrier a pair");
static_assert(!PAIRS || D_FRAGS % 8 == 0, "a side's columns begin where a permutation does");
static_assert(SMEM_BYTES == Q_BYTES + 2 * STAGES * KV_BYTES + P_BYTES + ROW_BYTES +
                                2 * MASK_SMEM_BYTES,
              "SMEM_BYTES does not match the layout: fix tiling.flash_mma_smem or this header");

// Addresses in shared memory, as PTX wants them, and one pointer.
struct MmaSmem {
    unsigned q;            // [BLOCK_M, HEAD_DIM], and O on its way out
    unsigned k;            // [STAGES, BLOCK_N, HEAD_DIM]
    unsigned v;            // [STAGES, BLOCK_N, HEAD_DIM]
    unsigned p;            // [BLOCK_M, BLOCK_N], with PAIRS
    float* rows;           // [SIDES, BLOCK_M], what a pair of warps tells each other of its rows
    unsigned char* cells;  // [CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit MmaSmem(unsigned char* smem)
        : q(smem_address(smem)), k(q + Q_BYTES), v(k + STAGES * KV_BYTES),
          p(v + STAGES * KV_BYTES),
          rows(reinterpret_cast<float*>(smem + Q_BYTES + 2 * STAGES * KV_BYTES + P_BYTES)),
          cells(reinterpret_cast<unsigned char*>(rows) + ROW_BYTES) {}
    // There are two tables of cells: warps that are still in the visit before look at the other.
    __device__ __forceinline__ void turn_cells(int visit) {
        if (CUTS_TILES && visit > 0) cells += visit % 2 ? MASK_SMEM_BYTES : -MASK_SMEM_BYTES;
    }
};

// The warp's rows of Q as A fragments, 16 columns at a time: from registers, or read again for
// every tile of K.
struct QRows {
    TileReader<> reader;
#if Q_IN_REGS
    unsigned regs[HEAD_DIM_PAD / 16][M_FRAGS][4];
#endif

    __device__ __forceinline__ QRows(unsigned tile, const Place& at)
        : reader(reader_of_a(tile, at.row0, 0, at.lane)) {}
    // Call when Q is in shared memory.
    __device__ __forceinline__ void keep() {
#if Q_IN_REGS
#pragma unroll
        for (int k = 0; k < HEAD_DIM_PAD / 16; ++k) read_a(regs[k], reader, k);
#endif
    }
    __device__ __forceinline__ void fragments(unsigned (&a)[M_FRAGS][4], int k) const {
#if Q_IN_REGS
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[m][i] = regs[k][m][i];
#else
        read_a(a, reader, k);
#endif
    }
};

// S = Q K^T of one tile. K is stored as the products want it: a key is a column of B. After the
// products of 16 columns it calls `between`: tensor cores work on while the warp does other things.
template <typename Between>
__device__ __forceinline__ void scores(Rows<N_FRAGS>& s, const QRows& q, unsigned k_tile,
                                       const Place& at, Between between) {
    clear(s);
    const TileReader<> keys = reader_of_columns(k_tile, at.key0(), at.lane);
#pragma unroll
    for (int k = 0; k < HEAD_DIM_PAD / 16; ++k) {
        unsigned a[M_FRAGS][4];
        q.fragments(a, k);
        add_columns(s, a, keys, k);
        between(k);
    }
}

// P as A fragments, 16 keys at a time: a warp's own accumulators, or what the pair has stored.
struct PRows {
    const Rows<N_FRAGS>& p;
#if PAIRS
    TileReader<P_CHUNKS> reader;

    __device__ __forceinline__ PRows(const Rows<N_FRAGS>& p, unsigned tile, const Place& at)
        : p(p), reader(reader_of_a<P_CHUNKS>(tile, at.row0, 0, at.lane)) {
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int n = 0; n < N_FRAGS; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    store_shared(chunk_address<P_CHUNKS>(tile, at.row(m, half), at.key0() / 8 + n) +
                                     at.lane % 4 * 4,
                                 pack(p[m][n][2 * half], p[m][n][2 * half + 1]));
        at.meet();
    }
#else
    __device__ __forceinline__ PRows(const Rows<N_FRAGS>& p, unsigned, const Place&) : p(p) {}
#endif
    __device__ __forceinline__ void fragments(unsigned (&a)[M_FRAGS][4], int k) const {
#if PAIRS
        read_a(a, reader, k);
#else
        pack_a(a, p, k);
#endif
    }
};

// O += P V. V is stored by keys, the products want it by columns: ldmatrix transposes.
__device__ __forceinline__ void add_product(Rows<D_FRAGS>& o, const PRows& p, unsigned v_tile,
                                            const Place& at) {
    const TileReader<> values = reader_of_rows(v_tile, 0, at.fragment0(), at.lane);
#pragma unroll
    for (int k = 0; k < BLOCK_N / 16; ++k) {
        unsigned a[M_FRAGS][4];
        p.fragments(a, k);
        add_rows<2>(o, a, values, k);
    }
}

// Rounds O to the io dtype and stores it, 16 bytes a lane: by way of the warp's own rows of Q's
// tile, which nobody reads any more.
__device__ __forceinline__ void store_rows(const Rows<D_FRAGS>& o, unsigned tile, io_t* out,
                                           i64 row_stride, int rows, const Place& at,
                                           Traffic& traffic) {
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < D_FRAGS; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(chunk_address(tile, at.row(m, half), at.fragment0() + n) +
                                 at.lane % 4 * 4,
                             pack(o[m][n][2 * half], o[m][n][2 * half + 1]));
    __syncwarp();  // the warp's rows are written before its lanes read them by chunks
#pragma unroll 4
    for (int i = at.lane; i < WARP_ROWS * D_FRAGS; i += WARP) {
        const int row = at.row0 + i / D_FRAGS, chunk = at.fragment0() + i % D_FRAGS;
        const int n = row < rows ? max(0, min(8, HEAD_DIM - 8 * chunk)) : 0;
        store_chunk_of_tile(out + row * row_stride + 8 * chunk, chunk_address(tile, row, chunk), n,
                            TENSOR_OUT, traffic);
    }
}

// Shared memory of the flash rungs, 03 and 04, and the element mask of one of their tiles.
//
// Both orders of the loops keep the same tiles on chip: Q, K, V, S (then P), and m, l, alpha of the
// rows of Q. fa_kernels/tiling.py (flash_smem, with_block_mask) states the same layout in Python.
#pragma once

#include "block_mask.cuh"
#include "io.cuh"
#include "tile.cuh"

constexpr int Q_CHUNKS = BLOCK_M * HEAD_CHUNKS;
constexpr int KV_CHUNKS = BLOCK_N * HEAD_CHUNKS;
constexpr int ROWS_PAD = round_up(BLOCK_M, 4);
static_assert(SMEM_BYTES == 16 * (Q_CHUNKS + 2 * KV_CHUNKS) + 4 * BLOCK_M * BLOCK_N_PAD +
                                12 * ROWS_PAD + MASK_SMEM_BYTES,
              "SMEM_BYTES does not match the layout below: fix tiling.flash_smem or this header");

struct FlashSmem {
    Chunk* q;              // [BLOCK_M, HEAD_DIM]
    Chunk* k;              // [BLOCK_N, HEAD_DIM]
    Chunk* v;              // [BLOCK_N, HEAD_DIM]
    float* s;              // [BLOCK_M, BLOCK_N], S, then P in its place
    float* m;              // [BLOCK_M], log2 units
    float* l;              // [BLOCK_M]
    float* alpha;          // [BLOCK_M]
    unsigned char* cells;  // [CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit FlashSmem(unsigned char* smem)
        : q(reinterpret_cast<Chunk*>(smem)), k(q + Q_CHUNKS), v(k + KV_CHUNKS),
          s(reinterpret_cast<float*>(v + KV_CHUNKS)), m(s + BLOCK_M * BLOCK_N_PAD),
          l(m + ROWS_PAD), alpha(l + ROWS_PAD),
          cells(reinterpret_cast<unsigned char*>(alpha + ROWS_PAD)) {}
};

#if CUTS_TILES
// The mask of the tile at rows q0.. and keys k0..; a tile that is cut fetches the blocks it
// touches, which the next barrier makes visible.
__device__ __forceinline__ TileMask tile_mask(const FlashSmem& smem, const BlockMask& mask,
                                              int flags, i64 first_end, int q0, int rows, int k0,
                                              int keys, Traffic& traffic) {
    TileMask kept(first_end - k0, keys);
    if (flags & FLAG_MIXED) {
        load_cells(smem.cells, mask, q0, rows, k0, keys, traffic);
        kept.cells_smem = smem.cells;
        kept.row0 = q0 % MASK_BLOCK_M;
        kept.col0 = k0 % MASK_BLOCK_N;
    }
    return kept;
}
#define TILE_MASK(first_end, q0, rows, k0, keys)                                                  \
    tile_mask(smem, block_mask, walk.flags(), first_end, q0, rows, k0, keys, traffic)
#else
#define TILE_MASK(first_end, q0, rows, k0, keys) TileMask((first_end) - (k0), keys)
#endif

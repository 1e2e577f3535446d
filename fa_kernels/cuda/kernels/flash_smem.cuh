// Shared memory of the flash rungs, 03 and 04, and how they make the mask of a tile.
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
    float* m;              // [BLOCK_M], in the units of score.cuh
    float* l;              // [BLOCK_M]
    float* alpha;          // [BLOCK_M]
    unsigned char* cells;  // [CELL_ROWS, CELL_COLS], only if a block mask can cut tiles

    __device__ __forceinline__ explicit FlashSmem(unsigned char* smem)
        : q(reinterpret_cast<Chunk*>(smem)), k(q + Q_CHUNKS), v(k + KV_CHUNKS),
          s(reinterpret_cast<float*>(v + KV_CHUNKS)), m(s + BLOCK_M * BLOCK_N_PAD),
          l(m + ROWS_PAD), alpha(l + ROWS_PAD),
          cells(reinterpret_cast<unsigned char*>(alpha + ROWS_PAD)) {}
};

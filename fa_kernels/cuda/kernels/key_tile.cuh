// Gradients of a tile on CUDA cores: dk and dv of a K/V tile in registers, dq added up in HBM.
//
// Rungs 02 to 04 share it; on tensor cores the tiles are fragments (mma_backward.cuh).
#pragma once

#include "io.cuh"
#include "tile.cuh"

using KeyTile = Accumulator<BLOCK_N>;  // dk or dv of one K/V tile

// dst[0:rows, :] += acc in fp32 rows of HEAD_DIM, while other blocks do the same: in any order.
template <int ROWS>
__device__ __forceinline__ void add_atomically(const Accumulator<ROWS>& tile, float* dst, int rows,
                                               int tensor, Traffic& traffic) {
#pragma unroll
    for (int i = 0; i < Accumulator<ROWS>::O_ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < O_COL_GROUPS; ++j) {
            const int row = tile.row(i), col = tile.group(j) * 4;
            const int n = row < rows ? min(4, HEAD_DIM - col) : 0;
            float* to = dst + i64(row) * HEAD_DIM + col;
            if (n > 0) atomicAdd(to, tile.acc[i][j].x);
            if (n > 1) atomicAdd(to + 1, tile.acc[i][j].y);
            if (n > 2) atomicAdd(to + 2, tile.acc[i][j].z);
            if (n > 3) atomicAdd(to + 3, tile.acc[i][j].w);
            if (n > 0) traffic.read(tensor, n * static_cast<int>(sizeof(float)));
            if (n > 0) traffic.write(tensor, n * static_cast<int>(sizeof(float)));
        }
    }
}

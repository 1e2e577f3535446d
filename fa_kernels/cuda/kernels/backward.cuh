// What every backward rung needs beside the forward's tile code: loops over the rows of a K/V tile.
//
// A K/V-owned block goes over the Q tiles that attend its keys, of every head of q that shares
// them, and owns dk and dv: no other block writes there, so their bits never depend on which runs
// first.
#pragma once

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"

using KeyTile = Accumulator<BLOCK_N>;  // dk or dv of one K/V tile

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

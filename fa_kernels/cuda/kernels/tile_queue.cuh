// Which K/V tiles a block visits, two ahead: what asynchronous copies need to know.
//
// As TileWalk of block_mask.cuh, for a loop with one barrier a visit. Without a block mask it is a
// counter.
#pragma once

#include "block_mask.cuh"
#include "io.cuh"

// What is walked: the tile in use and the next two, which are copied meanwhile.
struct TileQueue {
#if BLOCK_SPARSE
    // Thread 0 alone reads the list, so that every byte is read once per block; entry i + 3 is
    // handed to the others through a ring of four while i is in use.
    int* ring_smem;
    const int* entries;
    i64 at = 0, stop = 0;
    int index = 0, ahead = -1, entry[3];

    __device__ __forceinline__ TileQueue(int* ring_smem, const BlockMask& mask, int list,
                                         Traffic& traffic)
        : ring_smem(ring_smem), entries(mask.entries) {
        if (threadIdx.x == 0) {
            at = mask.start[list];
            stop = mask.start[list + 1];
            traffic.read(TENSOR_MASK, 2 * sizeof(i64));
            for (int i = 0; i < 3; ++i) ring_smem[i] = next(traffic);
            ahead = next(traffic);
        }
        __syncthreads();  // the first three entries are there
        for (int i = 0; i < 3; ++i) entry[i] = ring_smem[i];
    }
    __device__ __forceinline__ int next(Traffic& traffic) {
        if (at >= stop) return -1;
        traffic.read(TENSOR_MASK, sizeof(int));
        return entries[at++];
    }
    // Whether there is a tile in use, or one or two after it, and which.
    __device__ __forceinline__ bool has(int after) const { return entry[after] >= 0; }
    __device__ __forceinline__ int tile(int after) const { return entry[after] >> FLAG_BITS; }
    __device__ __forceinline__ int flags() const { return entry[0] & ((1 << FLAG_BITS) - 1); }
    __device__ __forceinline__ int visit() const { return index; }
    // Before the barrier of a visit.
    __device__ __forceinline__ void hand_out(Traffic& traffic) {
        if (threadIdx.x != 0) return;
        ring_smem[(index + 3) % 4] = ahead;
        ahead = next(traffic);
    }
    // After it.
    __device__ __forceinline__ void advance() {
        entry[0] = entry[1];
        entry[1] = entry[2];
        entry[2] = ring_smem[(index + 3) % 4];
        ++index;
    }
#else
    int at, end;

    __device__ __forceinline__ TileQueue(int first, int end) : at(first), end(end) {}
    __device__ __forceinline__ bool has(int after) const { return at + after < end; }
    __device__ __forceinline__ int tile(int after) const { return at + after; }
    __device__ __forceinline__ void hand_out(Traffic&) {}
    __device__ __forceinline__ void advance() { ++at; }
    __device__ __forceinline__ int visit() const { return 0; }
#endif
};

#if !BLOCK_SPARSE
// The same tiles, begun `shift` after the first and gone round: blocks that add to the same tiles
// begin at different ones and rarely meet there.
struct RoundQueue : TileQueue {
    int first, shift;

    __device__ __forceinline__ RoundQueue(int first, int end, int shift)
        : TileQueue(first, end), first(first), shift(shift) {}
    __device__ __forceinline__ int tile(int after) const {
        const int next = at + after + shift;
        return next < end ? next : next - end + first;
    }
};
#endif

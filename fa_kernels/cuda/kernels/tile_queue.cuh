// Which tiles a block visits, two ahead: what asynchronous copies need to know.
//
// As TileWalk of block_mask.cuh, for a loop with one barrier a visit. Without a block mask it is a
// counter. With one it costs a thread the same two registers: the list and what is known of it stay
// in shared memory.
#pragma once

#include "block_mask.cuh"
#include "io.cuh"
#include "mma.cuh"

// Blocks in sections of heads; within one, turn by turn: what comes first has the most work in
// every head, and late long blocks would idle the GPU. K and V of a section fit in L2 together.
struct Turn {
    int head, turn;

    __device__ __forceinline__ Turn(int block, int turns, int heads, int heads_in_section) {
        const int head0 = block / (heads_in_section * turns) * heads_in_section;
        const int heads_here = min(heads_in_section, heads - head0);
        const int within = block - head0 * turns;
        head = head0 + within % heads_here;
        turn = within / heads_here;
    }
};

#if BLOCK_SPARSE
// What is known of a list (fa_kernels/tile_list.py, Queues): where its entries begin, the tile
// whose list it is, and how many there are. Lists are sorted, the longest first.
struct __align__(16) ListHead {
    i64 start;
    int tile, count;
};
// BLOCK_MASK wants to know of how many bounds the list of a head has; a ListHead takes two.
constexpr int HEAD_WORDS = sizeof(ListHead) / sizeof(i64);

struct QueueSmem {
    const int* entries;
    int tile, count;
    int ring[4];  // entries `index` to `index + 2`, and one that is on its way
};
#define QUEUE_PARAMS BLOCK_MASK_PARAMS, int heads_in_section
#else
#define QUEUE_PARAMS BLOCK_MASK_PARAMS
#endif

// What is walked: the tile in use and the next two, which are copied meanwhile.
struct TileQueue {
#if BLOCK_SPARSE
    QueueSmem& smem;
    int index = 0;

    // Thread 0 alone reads the list, so that every byte is read once per block. No thread may still
    // look at what was in `smem` before.
    __device__ __forceinline__ TileQueue(QueueSmem& smem, const BlockMask& mask, int list,
                                         Traffic& traffic)
        : smem(smem) {
        if (threadIdx.x == 0) {
            const ListHead head = reinterpret_cast<const ListHead*>(mask.start)[list];
            traffic.read(TENSOR_MASK, sizeof(ListHead));
            smem.entries = mask.entries + head.start;
            smem.tile = head.tile;
            smem.count = head.count;
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                if (i >= head.count) continue;
                smem.ring[i] = mask.entries[head.start + i];
                traffic.read(TENSOR_MASK, sizeof(int));
            }
        }
        __syncthreads();  // the first three entries are there
    }
    // The tile whose list this is.
    __device__ __forceinline__ int own() const { return smem.tile; }
    // Whether there is a tile in use, or one or two after it, and which.
    __device__ __forceinline__ bool has(int after) const { return index + after < smem.count; }
    __device__ __forceinline__ int tile(int after) const {
        return smem.ring[(index + after) % 4] >> FLAG_BITS;
    }
    __device__ __forceinline__ int flags() const {
        return smem.ring[index % 4] & ((1 << FLAG_BITS) - 1);
    }
    __device__ __forceinline__ int visit() const { return index; }
    // Copies the next entry ahead, in the place of the one of the visit before: call it when nobody
    // looks at that any more. It is there at the barrier of the next visit, as all copies are.
    __device__ __forceinline__ void fetch(Traffic& traffic) const {
        if (threadIdx.x != 0 || !has(3)) return;
        const int* to = smem.ring + (index + 3) % 4;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)),
                     "l"(smem.entries + index + 3)
                     : "memory");
        traffic.read(TENSOR_MASK, sizeof(int));
    }
    __device__ __forceinline__ void advance() { ++index; }
#else
    int at, end;

    __device__ __forceinline__ TileQueue(int first, int end) : at(first), end(end) {}
    __device__ __forceinline__ bool has(int after) const { return at + after < end; }
    __device__ __forceinline__ int tile(int after) const { return at + after; }
    __device__ __forceinline__ void fetch(Traffic&) const {}
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

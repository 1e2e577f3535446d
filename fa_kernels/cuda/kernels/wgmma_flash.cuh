// The parts of FlashAttention on warpgroups: shared memory, who waits for whom, and the products.
//
// One warpgroup, the last, only copies (the producer). The others each own 64 rows of Q and go
// over all K/V tiles of a work item, an item being a Q tile of one head; what a warp does with its
// 16 rows of S is mma_softmax.cuh's. fa_kernels/tiling.py (flash_wgmma_smem, with_block_mask) has
// the layout of shared memory in Python.
#pragma once

#include "block_mask.cuh"
#include "hopper.cuh"
#include "io.cuh"
#include "mma.cuh"
#include "mma_softmax.cuh"
#include "tile_queue.cuh"

constexpr int GROUPS = BLOCK_M / 64;   // warpgroups that multiply
constexpr int WARPS = THREADS / WARP;   // their warps
constexpr int SLABS = HEAD_DIM_PAD / SLAB_COLS;
constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM_PAD;
constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM_PAD;
constexpr int P_STEPS = BLOCK_N / 16;  // of 16 keys
static_assert(THREADS == GROUPS * WARPGROUP && BLOCK_M % 64 == 0 && GROUPS <= 3,
              "a warpgroup for every 64 rows, and registers for three");
static_assert(BLOCK_N % 64 == 0 && HEAD_DIM_PAD % 64 == 0, "whole slabs and products");
static_assert(HEAD_DIM % 8 == 0, "TMA wants rows at multiples of 16 bytes");
static_assert(!PACKED, "a box of TMA would reach into the next sequence");
static_assert(!PAIRS && M_FRAGS == 1, "a warp has 16 rows to itself");

// A warpgroup stops where its own rows have no more keys: worth it where a tile of Q is higher than
// one of K is wide. Not where elements are looked up: those of a visited tile are counted.
constexpr bool LEAVES_EARLY = BLOCK_M > BLOCK_N && !BLOCK_SPARSE && !READS_ELEMENTS;

// What barriers and the walk take: 2 + 4 STAGES barriers, then what the producer tells.
constexpr int CONTROL_BYTES = 256;
static_assert(SMEM_BYTES == Q_BYTES + 2 * STAGES * KV_BYTES + CONTROL_BYTES + 2 * MASK_SMEM_BYTES,
              "SMEM_BYTES does not match the layout: fix tiling.flash_wgmma_smem or this header");
static_assert(8 * (2 + 4 * STAGES) + 4 * (STAGES + 3) <= CONTROL_BYTES, "control fits");

// Registers per thread: what the launch gives, moved from the producer to those who multiply.
constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40;
constexpr int CONSUMER_REGISTERS = GROUPS == 3 ? 160 : 232;

// Addresses in shared memory. A "full" barrier completes when a copy has arrived, an "empty" one
// when every warp that multiplies is done with it.
struct WgmmaSmem {
    unsigned q;            // [BLOCK_M, HEAD_DIM]
    unsigned k, v;         // [STAGES, BLOCK_N, HEAD_DIM]
    unsigned barriers;     // 8 bytes each
    int* told;             // [STAGES + 3]: entries of K's stages; of an item number, q0, visits
    bool cells_turned = false;
    unsigned char* cells;  // [CELL_ROWS, CELL_COLS], twice, only if a block mask can cut tiles

    __device__ __forceinline__ explicit WgmmaSmem(unsigned char* smem)
        : q(smem_address(smem)), k(q + Q_BYTES), v(k + STAGES * KV_BYTES),
          barriers(v + STAGES * KV_BYTES),
          told(reinterpret_cast<int*>(smem + Q_BYTES + 2 * STAGES * KV_BYTES +
                                      8 * (2 + 4 * STAGES))),
          cells(smem + Q_BYTES + 2 * STAGES * KV_BYTES + CONTROL_BYTES) {}
    __device__ __forceinline__ unsigned q_full() const { return barriers; }
    __device__ __forceinline__ unsigned q_empty() const { return barriers + 8; }
    __device__ __forceinline__ unsigned k_full(int stage) const {
        return barriers + 16 + 8 * stage;
    }
    __device__ __forceinline__ unsigned k_empty(int stage) const {
        return k_full(stage) + 8 * STAGES;
    }
    __device__ __forceinline__ unsigned v_full(int stage) const {
        return k_full(stage) + 16 * STAGES;
    }
    __device__ __forceinline__ unsigned v_empty(int stage) const {
        return k_full(stage) + 24 * STAGES;
    }
    // There are two tables of cells: warps that are still in the visit before look at the other.
    __device__ __forceinline__ void turn_cells() {
        if (CUTS_TILES) cells += cells_turned ? -MASK_SMEM_BYTES : MASK_SMEM_BYTES;
        cells_turned = !cells_turned;
    }
    // By one thread, before a block barrier.
    __device__ __forceinline__ void init() const {
        mbarrier_init(q_full(), 1);
        mbarrier_init(q_empty(), WARPS * WARP_ARRIVALS);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(k_full(stage), 1);
            mbarrier_init(k_empty(stage), WARPS * WARP_ARRIVALS);
            mbarrier_init(v_full(stage), 1);
            mbarrier_init(v_empty(stage), WARPS * WARP_ARRIVALS);
        }
        mbarrier_init_fence();
    }
};

// Hands out work items, which come longest first: a block that is done takes the next one. Called
// by one thread of every block. `counters` are two zeros, which they are again at the end.
struct WorkItems {
    unsigned* counters;  // items taken beside the first of every block; blocks that have ended
    int items;

    __device__ __forceinline__ int first() const { return blockIdx.x; }
    __device__ __forceinline__ int next() const { return gridDim.x + atomicAdd(counters, 1u); }
    // After a `next` that was none: nobody asks any more when all blocks have come here.
    __device__ __forceinline__ void end() const {
        if (atomicAdd(counters + 1, 1u) == gridDim.x - 1) counters[0] = counters[1] = 0;
    }
};

// What the producer finds to do for a work item: its Q tile and the K/V tiles to visit, as entries
// of a list (block_mask.cuh), which it tells the others one by one.
struct ItemWalk {
    int q0, count, first;  // `first` K/V tile, where there is no list
#if BLOCK_SPARSE
    const int* entries;
    int ahead = 0;  // read one ahead: nobody waits for the load

    __device__ __forceinline__ ItemWalk(const BlockMask& mask, int turn, Traffic& traffic) {
        const ListHead list = reinterpret_cast<const ListHead*>(mask.start)[turn];
        traffic.read(TENSOR_MASK, sizeof(ListHead));
        q0 = list.tile * BLOCK_M;
        count = list.count;
        first = 0;
        entries = mask.entries + list.start;
        fetch(0, traffic);
    }
    __device__ __forceinline__ void fetch(int visit, Traffic& traffic) {
        if (visit >= count) return;
        ahead = entries[visit];
        traffic.read(TENSOR_MASK, sizeof(int));
    }
    // Called once a visit, in order.
    __device__ __forceinline__ int entry(int visit, Traffic& traffic) {
        const int now = ahead;
        fetch(visit + 1, traffic);
        return now;
    }
#else
    // The last Q tiles first: under a causal mask they have the most work.
    __device__ __forceinline__ ItemWalk(const KeyRange& range, int q_tiles, int turn,
                                        int seqlen_q) {
        q0 = (q_tiles - 1 - turn) * BLOCK_M;
        first = range.begin_of(q0) / BLOCK_N;
        const int key_end = range.end_of(min(q0 + BLOCK_M, seqlen_q) - 1);
        count = max(0, ceil_div(key_end, BLOCK_N) - first);
    }
    __device__ __forceinline__ int entry(int visit, Traffic&) const {
        return first + visit << FLAG_BITS;
    }
#endif
};

// What the others were told of a visit.
struct Told {
    int entry;

    __device__ __forceinline__ int tile() const { return entry >> FLAG_BITS; }
    __device__ __forceinline__ int flags() const { return entry & ((1 << FLAG_BITS) - 1); }
    // Until the cells of a tile that the block mask cuts are there, whoever fetched them.
    __device__ __forceinline__ void meet() const {
        if (CUTS_TILES && flags() & FLAG_MIXED) barrier(1 + GROUPS, THREADS);
    }
};

// Warpgroups take turns to issue their products: while one multiplies, the other does its softmax.
struct Turns {
    static constexpr bool ON = TAKE_TURNS && GROUPS > 1;
    int group;

    __device__ __forceinline__ void begin() const {
        if (ON && group == GROUPS - 1) barrier_arrive(1, 2 * WARPGROUP);
    }
    __device__ __forceinline__ void take() const {
        if (ON) barrier(1 + group, 2 * WARPGROUP);
    }
    __device__ __forceinline__ void pass() const {
        if (ON) barrier_arrive(1 + (group + 1) % GROUPS, 2 * WARPGROUP);
    }
    // Takes the turn that nobody will use.
    __device__ __forceinline__ void end() const {
        if (ON && group == 0) barrier(1, 2 * WARPGROUP);
    }
};

// COUNT fragments from `first` on; both are known at compile time once loops are unrolled.
template <int COUNT, int FRAGS>
__device__ __forceinline__ float (&part(float (&c)[FRAGS][4], int first))[COUNT][4] {
    return reinterpret_cast<float(&)[COUNT][4]>(c[first]);
}

// Starts S = Q K^T for the group's 64 rows.
__device__ __forceinline__ void start_scores(Rows<N_FRAGS>& s, unsigned q_rows, unsigned k_tile) {
    const Operand q = operand_along_rows(q_rows), k = operand_along_rows(k_tile);
#pragma unroll
    for (int step = 0; step < HEAD_DIM_PAD / 16; ++step) {
        const Operand a = q.at(step_along_rows<BLOCK_M>(step));
        const Operand b = k.at(step_along_rows<BLOCK_N>(step));
#pragma unroll
        for (int n = 0; n + 16 <= N_FRAGS; n += 16)
            wgmma<0, 0>(part<16>(s[0], n), a, b.at(8 * n * SLAB_ROW_BYTES), step > 0);
        if constexpr (N_FRAGS % 16 != 0)
            wgmma<0, 0>(part<8>(s[0], N_FRAGS - 8), a, b.at(8 * (N_FRAGS - 8) * SLAB_ROW_BYTES),
                        step > 0);
    }
    wgmma_commit();
}

// Starts O += P V. V lies by keys, down which the products run.
__device__ __forceinline__ void start_output(Rows<D_FRAGS>& o, const unsigned (&p)[P_STEPS][4],
                                             unsigned v_tile) {
    const Operand v = operand_down_columns<BLOCK_N>(v_tile);
#pragma unroll
    for (int step = 0; step < P_STEPS; ++step) {
        const Operand b = v.at(step_down_columns(step));
#pragma unroll
        for (int n = 0; n + 16 <= D_FRAGS; n += 16)
            wgmma<1>(part<16>(o[0], n), p[step], b.at(n / 8 * slab_bytes(BLOCK_N)), true);
        if constexpr (D_FRAGS % 16 != 0)
            wgmma<1>(part<8>(o[0], D_FRAGS - 8), p[step],
                     b.at((D_FRAGS - 8) / 8 * slab_bytes(BLOCK_N)), true);
    }
    wgmma_commit();
}

// P as A fragments.
__device__ __forceinline__ void round_p(unsigned (&p)[P_STEPS][4], const Rows<N_FRAGS>& s) {
#pragma unroll
    for (int step = 0; step < P_STEPS; ++step)
        pack_a(reinterpret_cast<unsigned(&)[1][4]>(p[step]), s, step);
}

// 4 x 4 words of four neighbouring lanes, transposed: word i of lane t becomes word t of lane i.
__device__ __forceinline__ void transpose_in_quad(unsigned (&w)[4], int lane) {
#pragma unroll
    for (int step = 1; step <= 2; ++step)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            unsigned& low = w[pair * (3 - step)];
            unsigned& high = w[pair * (3 - step) + step];
            const bool up = lane & step;
            const unsigned other = __shfl_xor_sync(ALL_LANES, up ? low : high, step);
            (up ? low : high) = other;
        }
}

// Rounds O to the io dtype and stores it, 16 bytes a lane.
__device__ __forceinline__ void store_output(const Rows<D_FRAGS>& o, io_t* out, i64 row_stride,
                                             int rows, const Place& at, Traffic& traffic) {
#pragma unroll
    for (int n = 0; n < D_FRAGS; n += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // A quad has 8 columns of each of four fragments, and a lane 2 of each: it takes the 8
            // of one.
            unsigned w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = pack(o[0][n + i][2 * half], o[0][n + i][2 * half + 1]);
            transpose_in_quad(w, at.lane);
            const int row = at.row(0, half), col = 8 * (n + at.lane % 4);
            if (row >= rows || col >= HEAD_DIM) continue;
            *reinterpret_cast<uint4*>(out + row * row_stride + col) =
                make_uint4(w[0], w[1], w[2], w[3]);
            traffic.write(TENSOR_OUT, 16);
        }
}

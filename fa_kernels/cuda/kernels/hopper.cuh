// What sm_90a adds, one PTX instruction each: wgmma, tensor memory accelerator (TMA), mbarriers.
//
// A warpgroup is four warps, of which the first has a number divisible by four. wgmma multiplies a
// 64 x 16 tile of A by a 16 x N tile of B for the whole group, asynchronously: operands come from
// shared memory (A also from registers), sums stay in registers. Fragments of the sums are those of
// mma.cuh: warp w of the group has rows 16 w .. 16 w + 15, and of these a lane has what an
// mma.m16n8k16 gives it. So what mma_softmax.cuh does to S fits, and P needs no shuffle either.
// Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor copy".
#pragma once

#include "io.cuh"
#include "mma.cuh"

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#error "wgmma needs -arch=sm_90a: without the a these instructions do not exist"
#endif

constexpr int WARPGROUP = 128;

// ---- tiles in shared memory, as TMA writes and wgmma reads them -------------------------------
// [ROWS, columns] in slabs of 64 columns, [ROWS, 64] each, whose rows are 128 bytes: within a row
// the 16-byte chunk c lies at c ^ (row % 8) (the 128-byte swizzle). A tile starts at a multiple of
// 1024 bytes: the permutation looks at address bits.
constexpr int SLAB_COLS = 64, SLAB_ROW_BYTES = 128;
__device__ constexpr int slab_bytes(int rows) { return rows * SLAB_ROW_BYTES; }

// Address of a 16-byte chunk, of 8 elements, in a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ unsigned slab_chunk(unsigned tile, int row, int chunk) {
    return tile + chunk / 8 * slab_bytes(ROWS) + row * SLAB_ROW_BYTES +
           16 * ((chunk ^ row) & 7);
}

// ---- matrix descriptors -----------------------------------------------------------------------
// Where wgmma finds an operand: address, and the distance between groups of 8 rows (stride) and,
// for an operand that is stored along M or N, between slabs (leading); all in units of 16 bytes.
struct Operand {
    u64 bits;

    // Another place in the same tile, `bytes` further on.
    __device__ __forceinline__ Operand at(int bytes) const { return {bits + (bytes >> 4)}; }
};
__device__ __forceinline__ Operand operand(unsigned tile, int leading_bytes) {
    return {u64(tile >> 4 & 0x3fff) | u64(leading_bytes >> 4) << 16 |
            u64(8 * SLAB_ROW_BYTES >> 4) << 32 | u64(1) << 62};  // 1: 128-byte swizzle
}
// Rows of the tile are rows of A, or columns of B: the products run along a row.
__device__ __forceinline__ Operand operand_along_rows(unsigned tile) { return operand(tile, 16); }
// Rows of the tile are columns of A, or rows of B: the products run down a column.
template <int ROWS>
__device__ __forceinline__ Operand operand_down_columns(unsigned tile) {
    return operand(tile, slab_bytes(ROWS));
}
// Steps of 16 in the direction of the products.
template <int ROWS>
__device__ __forceinline__ constexpr int step_along_rows(int k) {
    return k / 4 * slab_bytes(ROWS) + k % 4 * 32;
}
__device__ __forceinline__ constexpr int step_down_columns(int k) {
    return 16 * k * SLAB_ROW_BYTES;
}

// ---- wgmma ------------------------------------------------------------------------------------
// Before the first product, and wherever registers were written that the next ones use.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last PENDING groups of this warp's products are done.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Nothing that touches these registers may move across: the compiler does not know that a product
// still writes to them after its instruction.
template <int FRAGS>
__device__ __forceinline__ void pin(float (&c)[FRAGS][4]) {
#pragma unroll
    for (int n = 0; n < FRAGS; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}

#if IO_BF16
#define WGMMA_TYPES ".f32.bf16.bf16 "
#else
#define WGMMA_TYPES ".f32.f16.f16 "
#endif
#define WGMMA_16(c, n)                                                                             \
    "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]), "+f"(c[n + 1][0]),                 \
        "+f"(c[n + 1][1]), "+f"(c[n + 1][2]), "+f"(c[n + 1][3]), "+f"(c[n + 2][0]),                \
        "+f"(c[n + 2][1]), "+f"(c[n + 2][2]), "+f"(c[n + 2][3]), "+f"(c[n + 3][0]),                \
        "+f"(c[n + 3][1]), "+f"(c[n + 3][2]), "+f"(c[n + 3][3])
#define WGMMA_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_16                                                                             \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_32                                                                             \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_48                                                                             \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// c (+)= A B of 16 columns of A, by a warpgroup; c is 64 x 64 or 64 x 128. ADD: add to c, or
// overwrite it. DOWN_A, DOWN_B: that operand is stored down the columns.
template <int DOWN_A, int DOWN_B>
__device__ __forceinline__ void wgmma(float (&c)[8][4], Operand a, Operand b, bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16" WGMMA_TYPES "{" WGMMA_NAMES_0 WGMMA_NAMES_16
        "}, %32, %33, add, 1, 1, %35, %36;\n}"
        : WGMMA_16(c, 0), WGMMA_16(c, 4)
        : "l"(a.bits), "l"(b.bits), "r"(int(add)), "n"(DOWN_A), "n"(DOWN_B));
}
template <int DOWN_A, int DOWN_B>
__device__ __forceinline__ void wgmma(float (&c)[16][4], Operand a, Operand b, bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16" WGMMA_TYPES "{" WGMMA_NAMES_0 WGMMA_NAMES_16
            WGMMA_NAMES_32 WGMMA_NAMES_48 "}, %64, %65, add, 1, 1, %67, %68;\n}"
        : WGMMA_16(c, 0), WGMMA_16(c, 4), WGMMA_16(c, 8), WGMMA_16(c, 12)
        : "l"(a.bits), "l"(b.bits), "r"(int(add)), "n"(DOWN_A), "n"(DOWN_B));
}
// The same with A in registers, as pack_a of mma.cuh gives it.
template <int DOWN_B>
__device__ __forceinline__ void wgmma(float (&c)[8][4], const unsigned (&a)[4], Operand b,
                                      bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16" WGMMA_TYPES "{" WGMMA_NAMES_0 WGMMA_NAMES_16
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
        : WGMMA_16(c, 0), WGMMA_16(c, 4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(add)), "n"(DOWN_B));
}
template <int DOWN_B>
__device__ __forceinline__ void wgmma(float (&c)[16][4], const unsigned (&a)[4], Operand b,
                                      bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16" WGMMA_TYPES "{" WGMMA_NAMES_0 WGMMA_NAMES_16
            WGMMA_NAMES_32 WGMMA_NAMES_48 "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"
        : WGMMA_16(c, 0), WGMMA_16(c, 4), WGMMA_16(c, 8), WGMMA_16(c, 12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(add)), "n"(DOWN_B));
}

// ---- registers --------------------------------------------------------------------------------
// A warpgroup's own share of the SM's registers, per thread; each role asks once, first of all.
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- mbarriers --------------------------------------------------------------------------------
// A barrier in shared memory, 8 bytes, by its address. It completes a phase when `count` arrivals
// have come and the bytes that were announced are there; phases alternate in parity, 0 first.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// After all are initialised, before a block barrier: TMA sees them.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expecting(unsigned barrier, int nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(nbytes)
                 : "memory");
}
// For racecheck alone, which follows barriers but not __syncwarp: with it each lane arrives itself.
#ifndef EVERY_LANE_ARRIVES
#define EVERY_LANE_ARRIVES 0
#endif
constexpr int WARP_ARRIVALS = EVERY_LANE_ARRIVES ? WARP : 1;
// All lanes of this warp have written, or are done with, what `barrier` guards.
__device__ __forceinline__ void warp_arrive(unsigned barrier, int lane) {
    __syncwarp();  // all lanes are so far
    if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(barrier);
}
// Until the phase of this parity is complete. The phase before the first counts as complete, with
// parity 1: who waits for an empty stage starts with that.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---- TMA --------------------------------------------------------------------------------------
// What the driver encodes (fa_kernels/cuda/tensor_map.py): a tensor (batch, head, row, column) and
// the box of it, [rows, 64], that one copy moves; what lies outside of the tensor arrives as zeros.
struct alignas(128) TensorMap {
    u64 words[16];
};
__device__ __forceinline__ void tensor_map_prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// One box to shared memory, by one thread; its bytes, also those of zeros, count on `barrier`.
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, int col, int row,
                                         int head, int batch, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(head), "r"(batch), "r"(barrier)
        : "memory");
}
// A tile of ROWS rows, slab by slab.
template <int ROWS, int SLABS>
__device__ __forceinline__ void tma_load_tile(unsigned tile, const TensorMap& map, int row,
                                              int head, int batch, unsigned barrier) {
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab)
        tma_load(tile + slab * slab_bytes(ROWS), map, slab * SLAB_COLS, row, head, batch, barrier);
}
// What this thread wrote to shared memory is there for TMA and wgmma, once a barrier follows.
__device__ __forceinline__ void fence_for_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Adds `nbytes` of fp32 from shared to global memory, both at multiples of 16 bytes; by one thread.
__device__ __forceinline__ void bulk_add(float* to, unsigned from, int nbytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     to),
                 "r"(from), "r"(nbytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until what this thread added has been read (not: has arrived), so that it may be overwritten.
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- named barriers ---------------------------------------------------------------------------
// Counts this thread at a barrier of `threads` threads without waiting.
__device__ __forceinline__ void barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Which stage of a ring the n-th use has, and the parity of its phase.
template <int STAGES_>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES_) {
            stage = 0;
            parity ^= 1;
        }
    }
};

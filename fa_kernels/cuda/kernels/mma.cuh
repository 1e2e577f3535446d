// Tensor cores and asynchronous copies as sm_80 and later have them, one PTX instruction each.
//
// Fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments"), lane = 4 g + t:
//   A [16, 16]  a[0] rows g, columns 2t 2t+1; a[1] rows g + 8; a[2], a[3] the same, columns + 8
//   B [16, 8]   b[0] rows 2t 2t+1 of column g; b[1] rows + 8
//   C [16, 8]   c[0], c[1] row g, columns 2t 2t+1; c[2], c[3] row g + 8
// So two C tiles side by side are, packed to 16 bits, an A tile: P needs no shuffle on its way from
// one product to the next. ldmatrix fills A and B from rows in shared memory, transposed where the
// operand is stored the other way.
#pragma once

#include "io.cuh"

#if IO_BITS != 16
#error "tensor cores take 16-bit operands here: fp16 or bf16"
#endif

// ---- shared memory ----------------------------------------------------------------------------
__device__ __forceinline__ unsigned smem_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// 16 bytes from global to shared memory, around the registers; the last 16 - nbytes become zero.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, int nbytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(nbytes)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// A barrier of `threads` threads, among 16 of which 0 is __syncthreads.
__device__ __forceinline__ void barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void store_shared(unsigned to, unsigned value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

// Until this thread's copies are in shared memory; a barrier then shows them to the others.
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// ---- arithmetic -------------------------------------------------------------------------------
// c += a b, in fp32.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
#if IO_BF16
#define MMA_TYPE "bf16"
#else
#define MMA_TYPE "f16"
#endif
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two fp32 as a pair of the io dtype, `low` in the lower half: round to nearest even.
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned pair;
#if IO_BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// 2^x in one instruction, error 2 ulp; -inf gives 0.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- tiles in shared memory -------------------------------------------------------------------
// [rows, HEAD_DIM_PAD] in 16-byte chunks of 8 elements; the chunks of a row are permuted so that 8
// rows at one column, which is what ldmatrix reads, lie in 8 different groups of 4 banks.
constexpr int D_CHUNKS = HEAD_DIM_PAD / 8;
static_assert(HEAD_DIM_PAD % 32 == 0 && HEAD_DIM <= HEAD_DIM_PAD, "rows are whole 64-byte lines");

template <int CHUNKS>
__device__ __forceinline__ constexpr int swizzled(int row, int chunk) {
#if !SWIZZLE
    return chunk;
#else
    // Rows of a multiple of 128 bytes all start at bank 0; others alternate between two halves.
    return CHUNKS % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
#endif
}

// Address of a chunk in a tile whose rows have CHUNKS of them.
template <int CHUNKS = D_CHUNKS>
__device__ __forceinline__ unsigned chunk_address(unsigned tile, int row, int chunk) {
    return tile + 16 * (row * CHUNKS + swizzled<CHUNKS>(row, chunk));
}

// Where a lane reads a tile, in steps of 8 rows and 2 chunks that are known at compile time: the
// permutation then is one exclusive or.
template <int CHUNKS = D_CHUNKS>
struct TileReader {
    unsigned address;

    __device__ __forceinline__ TileReader(unsigned tile, int row, int chunk)
        : address(chunk_address<CHUNKS>(tile, row, chunk)) {}
    __device__ __forceinline__ unsigned at(int rows, int chunks) const {
        constexpr int PERMUTED = !SWIZZLE ? 0 : CHUNKS % 8 == 0 ? 7 : 3;
        return (address ^ 16 * (chunks & PERMUTED)) + 16 * (rows * CHUNKS + (chunks & ~PERMUTED));
    }
};

// Starts the copy of src[0:rows, 0:HEAD_DIM] to a tile of ROWS rows, zero past `rows` and HEAD_DIM.
// ALIGNED: its rows start at multiples of 16 bytes; otherwise the elements go one by one.
template <int ROWS>
__device__ __forceinline__ void copy_tile(unsigned tile, const io_t* src, i64 row_stride, int rows,
                                          int tensor, Traffic& traffic) {
    constexpr int STEPS = ceil_div(ROWS * D_CHUNKS, THREADS);
    // Where whole rows of threads take a step, each keeps its chunk and goes down by ROW_STEP rows:
    // one address to carry, not one for each step. (With longer rows ptxas spills less without.)
    constexpr bool DOWN = D_CHUNKS <= 8 && THREADS % D_CHUNKS == 0;
    constexpr int ROW_STEP = DOWN ? THREADS / D_CHUNKS : 0;
    const unsigned first = threadIdx.x;
    const io_t* from = src + i64(first / D_CHUNKS) * row_stride + 8 * (first % D_CHUNKS);
#pragma unroll(STEPS <= 16 ? STEPS : 8)
    for (int step = 0; step < STEPS; ++step) {
        const unsigned i = first + step * THREADS;
        if (ROWS * D_CHUNKS % THREADS != 0 && i >= ROWS * D_CHUNKS) break;
        const int row = i / D_CHUNKS, chunk = i % D_CHUNKS;
        if (!DOWN) from = src + row * row_stride + 8 * chunk;
        const int n = row < rows ? max(0, min(8, HEAD_DIM - 8 * chunk)) : 0;
        const unsigned to = chunk_address(tile, row, chunk);
#if ALIGNED
        copy_async(to, from, 2 * n);  // of 0 bytes: nothing is read
        traffic.read(tensor, 2 * n);
#else
        const uint4 bits = load_chunk<false>(from, n, tensor, traffic).bits;
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x),
                     "r"(bits.y), "r"(bits.z), "r"(bits.w)
                     : "memory");
#endif
        if (DOWN) from += ROW_STEP * row_stride;
    }
}

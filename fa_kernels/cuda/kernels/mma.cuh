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

// The same value, of which the compiler no longer knows that it stays the same: what is computed
// from it is computed where it is used, and not kept in registers for the whole of a loop.
__device__ __forceinline__ unsigned not_kept(unsigned value) {
    asm volatile("" : "+r"(value));
    return value;
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

// An 8 x 8 matrix transposed: a lane holds columns 2 t and 2 t + 1 of row g, as in a half of C.
__device__ __forceinline__ unsigned transposed(unsigned pair) {
    unsigned result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
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

// Fragments of M x N tiles of C, and how all of them begin.
template <int M, int N>
using Fragments = float[M][N][4];

template <int M, int N>
__device__ __forceinline__ void clear(Fragments<M, N>& c) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[m][n][i] = 0.f;
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

// ---- operands and products --------------------------------------------------------------------
// Where the lanes of a warp point ldmatrix.x4, by how the tile holds the operand. `row` and `chunk`
// are its first ones in the tile; steps of `chunk` must not carry into its bits (TileReader).
template <int CHUNKS = D_CHUNKS>
__device__ __forceinline__ TileReader<CHUNKS> reader_of_a(unsigned tile, int row, int chunk,
                                                          int lane) {
    return {tile, row + lane % 16, chunk + lane / 16};  // A itself: upper, lower rows; then right
}
template <int CHUNKS = D_CHUNKS>
__device__ __forceinline__ TileReader<CHUNKS> reader_of_a_transposed(unsigned tile, int row,
                                                                     int chunk, int lane) {
    return {tile, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2};
}
__device__ __forceinline__ TileReader<> reader_of_columns(unsigned tile, int row, int lane) {
    return {tile, row + lane % 8 + lane / 16 * 8, lane / 8 % 2};  // a column of B is a row here
}
__device__ __forceinline__ TileReader<> reader_of_rows(unsigned tile, int row, int chunk,
                                                       int lane) {
    return {tile, row + lane % 16, chunk + lane / 16};  // a row of B is a row here
}

// A's columns 16 k .. 16 k + 15, of 16 M rows.
template <int M, int CHUNKS>
__device__ __forceinline__ void read_a(unsigned (&a)[M][4], const TileReader<CHUNKS>& reader,
                                       int k) {
#pragma unroll
    for (int m = 0; m < M; ++m)
        ldmatrix(a[m], reader.at(16 * m, 2 * k));
}

// The same of accumulators, rounded.
template <int M, int N>
__device__ __forceinline__ void pack_a(unsigned (&a)[M][4], const Fragments<M, N>& c, int k) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[m][i] = pack(c[m][2 * k + i / 2][i % 2 * 2], c[m][2 * k + i / 2][i % 2 * 2 + 1]);
}

// c += A B, 16 columns of A times 16 rows of B, which the tile holds as columns ...
template <int M, int N>
__device__ __forceinline__ void add_columns(Fragments<M, N>& c, const unsigned (&a)[M][4],
                                            const TileReader<>& columns, int k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned b[4];
        ldmatrix(b, columns.at(8 * n, 2 * k));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma(c[m][n], a[m], b[0], b[1]);
            mma(c[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// ... or as rows; the result's pairs of fragments are STEP chunks apart.
template <int STEP, int M, int N>
__device__ __forceinline__ void add_rows(Fragments<M, N>& c, const unsigned (&a)[M][4],
                                         const TileReader<>& rows, int k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned b[4];
        ldmatrix_transposed(b, rows.at(16 * k, n / 2 * STEP));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma(c[m][n], a[m], b[0], b[1]);
            mma(c[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

// Starts the copy of src[0:rows, 0:HEAD_DIM] to a tile of ROWS rows, zero past `rows` and HEAD_DIM.
// ALIGNED: its rows start at multiples of 16 bytes; otherwise the elements go one by one.
// LEAN keeps no address from one call to the next, and where whole rows of threads take a step each
// keeps its chunk and goes down by some rows. (Beside a forward pass with longer rows ptxas spills
// less without.)
template <int ROWS, bool LEAN = false>
__device__ __forceinline__ void copy_tile(unsigned tile, const io_t* src, i64 row_stride, int rows,
                                          int tensor, Traffic& traffic) {
    constexpr int STEPS = ceil_div(ROWS * D_CHUNKS, THREADS);
    constexpr bool DOWN = (LEAN || D_CHUNKS <= 8) && THREADS % D_CHUNKS == 0;
    constexpr int ROW_STEP = DOWN ? THREADS / D_CHUNKS : 0;
    const unsigned first = LEAN ? not_kept(threadIdx.x) : threadIdx.x;
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

// c += A B of 16 K columns of A, with the operands of a step read while the step before multiplies:
// where few warps share a scheduler, nobody else hides ldmatrix's latency. read_a(a, k) reads 16
// columns of A; read_b(b, n, k) the fragments n and n + 1 of their 16 rows of B.
__device__ constexpr int loads_in_step(int loads) {
    return loads % 4 == 0 ? 4 : loads % 3 == 0 ? 3 : loads % 2 == 0 ? 2 : 1;
}
template <int K, int M, int N, typename ReadA, typename ReadB>
__device__ __forceinline__ void multiply(Fragments<M, N>& c, ReadA read_a, ReadB read_b) {
    constexpr int LOADS = ceil_div(N, 2), IN_STEP = loads_in_step(LOADS), GROUPS = LOADS / IN_STEP;
    unsigned a[2][M][4], b[2][IN_STEP][4];
    const auto read = [&](int step) {
        const int k = step / GROUPS, n = step % GROUPS * 2 * IN_STEP;
        if (step % GROUPS == 0) read_a(a[k % 2], k);
#pragma unroll
        for (int i = 0; i < IN_STEP; ++i) read_b(b[step % 2][i], n + 2 * i, k);
    };
    read(0);
#pragma unroll
    for (int step = 0; step < K * GROUPS; ++step) {
        if (step + 1 < K * GROUPS) read(step + 1);
        const int k = step / GROUPS;
#pragma unroll
        for (int i = 0; i < IN_STEP; ++i) {
            const int n = step % GROUPS * 2 * IN_STEP + 2 * i;
            const unsigned(&of)[4] = b[step % 2][i];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma(c[m][n], a[k % 2][m], of[0], of[1]);
                if (n + 1 < N) mma(c[m][n + 1 < N ? n + 1 : n], a[k % 2][m], of[2], of[3]);
            }
        }
    }
}

// Stores the first n of the 8 elements at `from`.
__device__ __forceinline__ void store_chunk_of_tile(io_t* to, unsigned from, int n, int tensor,
                                                    Traffic& traffic) {
    if (n == 0) return;
    uint4 bits;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "r"(from));
    traffic.write(tensor, 2 * n);
    if (ALIGNED && n == 8) {
        *reinterpret_cast<uint4*>(to) = bits;
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
        if (e < n) to[e] = static_cast<io_t>(word(bits, e / 2) >> 16 * (e % 2));
}

// dst[0:rows, 0:HEAD_DIM] = a tile of ROWS rows, by all threads of the block.
template <int ROWS>
__device__ __forceinline__ void store_tile(unsigned tile, io_t* dst, i64 row_stride, int rows,
                                           int tensor, Traffic& traffic) {
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < ROWS * D_CHUNKS; i += THREADS) {
        const int row = i / D_CHUNKS, chunk = i % D_CHUNKS;
        const int n = row < rows ? max(0, min(8, HEAD_DIM - 8 * chunk)) : 0;
        store_chunk_of_tile(dst + row * row_stride + 8 * chunk, chunk_address(tile, row, chunk), n,
                            tensor, traffic);
    }
}

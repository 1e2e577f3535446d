// Element types, vector widths, strides and the traffic counters shared by all rungs.
//
// IO_BITS and IO_BF16 select the dtype of q, k, v, out (and of S, P in HBM): 32 = fp32, 16 = fp16
// or, with IO_BF16, bf16. Everything is accumulated in fp32. No CUDA header is included: NVRTC then
// compiles a rung in a second or two, and the file builds from the pip wheels alone. By hand:
//   nvcc -cubin -arch=sm_90 -DIO_BITS=16 -DHEAD_DIM=64 ... 04_flash_q_outer.cu
// with the macros that `fa.VARIANTS[name].plan(problem, tiling).macros` lists.
#pragma once

#if IO_BITS == 16
using io_t = unsigned short;  // the bits of an fp16 or bf16
#elif IO_BITS == 32
using io_t = float;
#else
#error "IO_BITS must be 16 (fp16, bf16) or 32 (fp32)"
#endif

using i64 = long long;
using u64 = unsigned long long;

// Strides in elements; the last axis is contiguous. 64-bit: N = 65536 with many heads passes 2^31.
struct Strides {
    i64 batch, head, row;
};

constexpr int CHUNK = 16 / sizeof(io_t);  // elements in one 16-byte access
constexpr int WARP = 32;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
#define INF __int_as_float(0x7f800000)  // NVRTC has no <math.h>

__device__ constexpr int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

__device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

// Combines `value` over groups of `lanes` neighbouring threads; each gets the result.
template <typename Op>
__device__ __forceinline__ float reduce_lanes(float value, int lanes, Op op) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// A chunk kept as raw 32-bit words: unpacking at the point of use keeps registers low.
struct Chunk {
    uint4 bits;
};

#if IO_BITS == 16 && IO_BF16
__device__ __forceinline__ float to_float(io_t value) {
    return __uint_as_float(unsigned(value) << 16);
}

// Round to nearest even in integers: sm_75 has no instruction for it, and this rounds the same
// everywhere.
__device__ __forceinline__ io_t from_float(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN: adding could carry it to inf
    return static_cast<io_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#elif IO_BITS == 16
__device__ __forceinline__ float to_float(io_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
}

__device__ __forceinline__ io_t from_float(float value) {
    io_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return narrow;
}
#else
__device__ __forceinline__ float to_float(io_t value) {
    return value;
}

__device__ __forceinline__ io_t from_float(float value) {
    return value;
}
#endif

__device__ __forceinline__ unsigned word(const uint4& bits, int i) {
    return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
}

// Element e of a chunk as fp32; e must be a compile-time constant after unrolling.
__device__ __forceinline__ float element(const Chunk& chunk, int e) {
#if IO_BITS == 16
    const unsigned pair = word(chunk.bits, e / 2);
    return to_float(static_cast<io_t>(e % 2 ? pair >> 16 : pair & 0xffffu));
#else
    return __uint_as_float(word(chunk.bits, e));
#endif
}

// ---- traffic counters ---------------------------------------------------------------------
// One (read, written) pair of byte counters per tensor, in this order; the host reads them as a
// (15, 2) uint64 array. Counted: executed global loads and stores of valid elements, before L1; an
// atomic is a load and a store. OUT is O, partial or final; LSE is lse and, where they live in HBM,
// m and l; MASK is all that masks, shifts or drops (block mask and the lists made from it, element
// mask, bias, dropout mask); bounds of packed sequences are, like kernel parameters, not counted.
// From D_OUT on the backward pass alone: DQ is dq, partial or final.
enum Tensor {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_S,
    TENSOR_P,
    TENSOR_OUT,
    TENSOR_LSE,
    TENSOR_MASK,
    TENSOR_D_OUT,
    TENSOR_DQ,
    TENSOR_DK,
    TENSOR_DV,
    TENSOR_DELTA,
    TENSOR_DP,
    TENSOR_DS,
    TENSORS
};

#if COUNT_TRAFFIC
struct Traffic {
    u64 bytes[TENSORS][2] = {};

    __device__ __forceinline__ void read(int tensor, int nbytes) { bytes[tensor][0] += nbytes; }
    __device__ __forceinline__ void write(int tensor, int nbytes) { bytes[tensor][1] += nbytes; }

    // All threads of a warp call it together: one atomic per warp, since rung 01 has a thread for
    // every element of S.
    __device__ void flush(u64* totals) {
#pragma unroll
        for (int i = 0; i < TENSORS * 2; ++i) {
            u64 sum = bytes[i / 2][i % 2];
            for (int offset = WARP / 2; offset > 0; offset /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (sum && threadIdx.x % WARP == 0) atomicAdd(&totals[i], sum);
        }
    }
};
#define TRAFFIC_PARAM , u64 *traffic_totals
#define TRAFFIC_FLUSH(traffic) (traffic).flush(traffic_totals)
#else
struct Traffic {  // empty: every call below compiles to nothing
    __device__ __forceinline__ void read(int, int) {}
    __device__ __forceinline__ void write(int, int) {}
};
#define TRAFFIC_PARAM
#define TRAFFIC_FLUSH(traffic)
#endif

// ---- partial 16-byte accesses --------------------------------------------------------------
// Elements lo..n-1 (of 0..CHUNK) of those starting at `src`. VECTOR says that src is 16-byte
// aligned, so a full chunk is one load; a partial one is read element by element, the rest is zero.
template <bool VECTOR>
__device__ __forceinline__ Chunk load_chunk(const io_t* src, int n, int tensor, Traffic& traffic,
                                            int lo = 0) {
    Chunk chunk = {make_uint4(0, 0, 0, 0)};
    if (n <= lo) return chunk;
    traffic.read(tensor, (n - lo) * static_cast<int>(sizeof(io_t)));
    if (VECTOR && lo == 0 && n == CHUNK) {
        chunk.bits = *reinterpret_cast<const uint4*>(src);
        return chunk;
    }
    io_t elements[CHUNK];
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) elements[e] = e >= lo && e < n ? src[e] : io_t(0);
#if IO_BITS == 16
    chunk.bits = make_uint4(elements[0] | elements[1] << 16, elements[2] | elements[3] << 16,
                            elements[4] | elements[5] << 16, elements[6] | elements[7] << 16);
#else
    chunk.bits = make_uint4(__float_as_uint(elements[0]), __float_as_uint(elements[1]),
                            __float_as_uint(elements[2]), __float_as_uint(elements[3]));
#endif
    return chunk;
}

// Rounds the fp32 values lo..n-1 (of 0..CHUNK) to the io dtype and stores them at `dst`.
template <bool VECTOR>
__device__ __forceinline__ void store_chunk(io_t* dst, const float (&values)[CHUNK], int n,
                                            int tensor, Traffic& traffic, int lo = 0) {
    if (n <= lo) return;
    traffic.write(tensor, (n - lo) * static_cast<int>(sizeof(io_t)));
    io_t elements[CHUNK];
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) elements[e] = from_float(values[e]);
    if (VECTOR && lo == 0 && n == CHUNK) {
        uint4 bits;
#if IO_BITS == 16
        bits = make_uint4(elements[0] | elements[1] << 16, elements[2] | elements[3] << 16,
                          elements[4] | elements[5] << 16, elements[6] | elements[7] << 16);
#else
        bits = make_uint4(__float_as_uint(elements[0]), __float_as_uint(elements[1]),
                          __float_as_uint(elements[2]), __float_as_uint(elements[3]));
#endif
        *reinterpret_cast<uint4*>(dst) = bits;
        return;
    }
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) {
        if (e >= lo && e < n) dst[e] = elements[e];
    }
}

// What one GPU reaches, unit by unit: device memory, L2, shared memory, fp32, exponentials.
//
// No rung: nothing here computes attention. Each kernel keeps one unit busy and everything else
// idle enough not to matter, and leaves a result that the host knows beforehand (ceilings.py holds
// the formulas), so that a kernel which skips work is found out before it is timed.
//
// Launch: THREADS threads a block (-DTHREADS), grid from the host; every kernel works on however
// many blocks there are. Sizes are chosen so that nothing is left over: no kernel has bounds to
// check, and a launch that does not divide is refused by the host.
//
// Architectures: sm_75 and later.

#ifndef THREADS
#error "compile with -DTHREADS=256: threads of a block"
#endif
static_assert(THREADS >= 64 && (THREADS & (THREADS - 1)) == 0, "power of two: % is an AND");

// 16 bytes a thread are the widest load there is, and 512 bytes a warp four whole lines of 128: a
// quarter of the instructions and of the addresses that 4-byte loads would take.
constexpr int VECTOR_BYTES = 16;
// Loads of a thread that are under way at once. By Little's law bytes in flight = bandwidth times
// latency: about 5 TB/s times 0.8 us = 4 MB on a whole H200, 30 KB an SM. Four loads of 16 bytes in
// each of 1024 threads are 64 KB.
constexpr int IN_FLIGHT = 4;
// Independent chains of fp32 arithmetic. An FFMA takes 4 cycles and a scheduler may issue one a
// cycle: one warp with 4 chains, or 4 warps with one, would do; 16 leave room for both to be late.
constexpr int FMA_CHAINS = 16;
// A MUFU takes longer (some 20 cycles), but only every eighth cycle a scheduler may start one.
constexpr int EXP_CHAINS = 8;

// volatile: in program order with the others, and not dropped where the same address comes again.
__device__ __forceinline__ uint4 load_past_l1(const uint4* from) {
    uint4 v;
    // .cg caches in L2 and not in L1, which would answer the second pass of a small working set.
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

__device__ __forceinline__ uint4 load_shared(unsigned from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

// Two's complement: sums wrap, in any order, to the same value.
__device__ __forceinline__ unsigned sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

// One word per warp: an atomic on a common word would take longer than the loads it is to check,
// and a word per thread would be traffic worth counting.
__device__ __forceinline__ void store_warp_sum(unsigned* sums, unsigned sum) {
    for (int lane = 16; lane > 0; lane /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    }
    if (threadIdx.x % 32 == 0) {
        sums[(blockIdx.x * THREADS + threadIdx.x) / 32] = sum;
    }
}

// HBM, read and write. A block copies chunks of THREADS * IN_FLIGHT vectors: 16 KB next to each
// other, so that a page of DRAM once opened is read to its end. All loads stand before the first
// store, or the compiler, which cannot know that the arrays are distinct, would keep them in turn.
extern "C" __global__ __launch_bounds__(THREADS) void copy_stream(
    const uint4* __restrict__ from, uint4* __restrict__ to, unsigned chunks_per_block) {
    for (unsigned i = 0; i < chunks_per_block; ++i) {
        const size_t chunk = blockIdx.x + static_cast<size_t>(i) * gridDim.x;
        const size_t first = chunk * (THREADS * IN_FLIGHT) + threadIdx.x;
        uint4 v_rmem[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            v_rmem[u] = __ldcs(from + first + u * THREADS);  // streaming: nobody reads it again
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            __stcs(to + first + u * THREADS, v_rmem[u]);
        }
    }
}

// HBM or L2, read only: the same code, and the size of the working set alone says which of them
// answers. Chunks are visited round and round; `chunks_in_set` is a power of two, so that coming
// round costs one AND. Every block passes the whole set, so that every slice of the L2 is asked.
extern "C" __global__ __launch_bounds__(THREADS) void read_stream(
    const uint4* __restrict__ from, unsigned* __restrict__ sums, unsigned chunks_in_set,
    unsigned chunks_per_block) {
    unsigned sum = 0;
    for (unsigned i = 0; i < chunks_per_block; ++i) {
        const unsigned chunk = (blockIdx.x + i * gridDim.x) & (chunks_in_set - 1);
        const size_t vectors_before = static_cast<size_t>(chunk) * (THREADS * IN_FLIGHT);
        const uint4* first = from + vectors_before + threadIdx.x;
        uint4 v_rmem[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            v_rmem[u] = load_past_l1(first + u * THREADS);
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            sum += sum_of(v_rmem[u]);
        }
    }
    store_warp_sum(sums, sum);
}

// L2, read only, and every byte by one block alone. In `read_stream` two or three SMs are at the
// same chunk at a time, and something between them and the L2 might ask for a line once and answer
// all; here no SM ever asks for what another does, so that each answer was read in the L2. A block
// goes round and round in the `own_chunks` that are its own.
extern "C" __global__ __launch_bounds__(THREADS) void read_apart(
    const uint4* __restrict__ from, unsigned* __restrict__ sums, unsigned own_chunks,
    unsigned chunks_per_block) {
    const size_t before = static_cast<size_t>(blockIdx.x) * own_chunks * (THREADS * IN_FLIGHT);
    const uint4* own = from + before + threadIdx.x;
    unsigned sum = 0, chunk = 0;
    for (unsigned i = 0; i < chunks_per_block; ++i) {
        const uint4* first = own + chunk * (THREADS * IN_FLIGHT);
        uint4 v_rmem[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            v_rmem[u] = load_past_l1(first + u * THREADS);
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            sum += sum_of(v_rmem[u]);
        }
        chunk = chunk + 1 == own_chunks ? 0 : chunk + 1;
    }
    store_warp_sum(sums, sum);
}

// Shared memory of every SM at once. Its 32 banks give 4 bytes each per cycle. A 16-byte load of a
// warp is served in four steps of 8 lanes, and 8 neighbouring lanes of 16 bytes are the 32 banks,
// each once: no conflicts, 128 bytes a cycle. The sum costs 4 additions, or 2 of three inputs, per
// load and thread: a fraction of what the integer units do in those four cycles.
extern "C" __global__ __launch_bounds__(THREADS) void read_shared(
    unsigned* __restrict__ sums, unsigned passes) {
    __shared__ uint4 words_smem[THREADS * IN_FLIGHT];
    for (int u = 0; u < IN_FLIGHT; ++u) {
        const unsigned word = 4 * (threadIdx.x + u * THREADS);
        words_smem[word / 4] = make_uint4(word, word + 1, word + 2, word + 3);
    }
    __syncthreads();  // a thread reads what others wrote
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(words_smem));
    unsigned sum = 0, reader = threadIdx.x;
#pragma unroll 2
    for (unsigned pass = 0; pass < passes; ++pass) {
        // The vectors of the next warp, lane for lane: were it those of the last pass, ptxas would
        // keep them in registers and load nothing, whatever is said to be volatile.
        reader = (reader + 32) % THREADS;
        const unsigned first = base + VECTOR_BYTES * reader;
        uint4 v_rmem[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            v_rmem[u] = load_shared(first + u * THREADS * VECTOR_BYTES);
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
            sum += sum_of(v_rmem[u]);
        }
    }
    store_warp_sum(sums, sum);
}

// Additions that the L2 does itself, without an answer (RED): how blocks add up dQ. Neighbouring
// lanes add to neighbouring words, `words_in_set` (a power of two) of them in all.
extern "C" __global__ __launch_bounds__(THREADS) void add_in_l2(
    float* __restrict__ to, unsigned words_in_set, unsigned adds_per_thread) {
    unsigned word = blockIdx.x * THREADS + threadIdx.x;
    for (unsigned i = 0; i < adds_per_thread; ++i) {
        atomicAdd(to + (word & (words_in_set - 1)), 1.0f);
        word += gridDim.x * THREADS;
    }
}

// fp32 units: chains of x <- a x + b. a and b are the same register in every instruction, which the
// operand cache keeps, so that x alone is read from a register bank. The compiler does not know
// their values and can leave nothing out.
extern "C" __global__ __launch_bounds__(THREADS) void multiply_add(
    float* __restrict__ out, float a, float b, unsigned steps) {
    float x_rmem[FMA_CHAINS];
#pragma unroll
    for (int c = 0; c < FMA_CHAINS; ++c) {
        x_rmem[c] = 2.0f + c + threadIdx.x % 32;
    }
    // Eight steps a round: the loop's own three instructions beside 128 FFMA.
#pragma unroll 8
    for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < FMA_CHAINS; ++c) {
            x_rmem[c] = fmaf(a, x_rmem[c], b);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < FMA_CHAINS; ++c) {
        sum += x_rmem[c];
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

// Exponentials: the special function unit (MUFU) does 16 a cycle and SM. As a softmax has them: an
// argument that changes by a subtraction, and a sum. These two additions run on other units, of
// which a scheduler could issue eight in the time of one MUFU.
extern "C" __global__ __launch_bounds__(THREADS) void exponentials(
    float* __restrict__ out, float down, unsigned steps) {
    float x_rmem[EXP_CHAINS], sum_rmem[EXP_CHAINS];
#pragma unroll
    for (int c = 0; c < EXP_CHAINS; ++c) {
        x_rmem[c] = -0.125f * c - 0.03125f * (threadIdx.x % 32);
        sum_rmem[c] = 0.0f;
    }
#pragma unroll 4
    for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < EXP_CHAINS; ++c) {
            float e;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x_rmem[c]));
            sum_rmem[c] += e;
            x_rmem[c] -= down;
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < EXP_CHAINS; ++c) {
        sum += sum_rmem[c];
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

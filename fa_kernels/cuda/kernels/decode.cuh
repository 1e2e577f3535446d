// The parts of decoding with a KV cache: where keys lie, how a warp has them copied, and what it
// does with a tile of 16 of them.
//
// S^T = K Q^T and O^T = V^T P^T: K and V^T are the 16 rows of an mma, the rows of q its columns. Of
// a row of K or V a lane reads 16 bytes at once, so the products take columns in another order: a
// sum has no order, and columns of O are put back where they belong when it is stored.
#pragma once

#include "io.cuh"
#include "mma.cuh"

constexpr int KEYS = 16;  // of a tile: a tile lies within one page
constexpr int STEP_KEYS = STEP_TILES * KEYS;
constexpr int ROW_FRAGS = GROUP_ROWS / 8;
constexpr int ROW_CHUNKS = ceil_div(HEAD_DIM, CHUNK);  // of 8 elements
constexpr int O_FRAGS = HEAD_DIM_PAD / 16;
constexpr int O_VALUES = O_FRAGS * ROW_FRAGS * 4;
constexpr int K_CHUNKS = HEAD_DIM_PAD / 32;  // 8 elements in each of 4 lanes
constexpr int V_CHUNKS = HEAD_DIM_PAD / 64;  // 8 elements in each of 8 lanes
constexpr int ROW_BYTES = 2 * HEAD_DIM_PAD;
constexpr int Q_ROW_BYTES = ROW_BYTES + 64;  // two rows at 4 chunks lie in different banks
constexpr int Q_BYTES = GROUP_ROWS * Q_ROW_BYTES;
constexpr int TILE_BYTES = KEYS * ROW_BYTES;  // of K; V's lies behind it
constexpr int STAGE_BYTES = STEP_TILES * 2 * TILE_BYTES;
constexpr int KV_BYTES = WARPS * STAGES * STAGE_BYTES;
constexpr int O_ROW = HEAD_DIM_PAD + 4;  // floats of a row of O on its way out
constexpr unsigned ALL_LANES = 0xffffffffu;
// Whether a tile is one bulk copy, which leaves the warps alone: BULK_COPIES says that rows of K
// and of V lie behind one another.
#define BULK (BULK_COPIES && ALIGNED && HEAD_DIM == HEAD_DIM_PAD && __CUDA_ARCH__ >= 900)
static_assert(HEAD_DIM_PAD % 64 == 0 && GROUP_ROWS % 8 == 0, "whole fragments");
static_assert((WARPS & (WARPS - 1)) == 0, "warps are merged two by two");
static_assert(THREADS == WARPS * WARP, "a block is its warps");
static_assert(STAGES >= 2, "one step is used while others arrive");
static_assert(4 * (WARPS / 2) * WARP * O_VALUES <= KV_BYTES, "accumulators pass there");
static_assert(4 * GROUP_ROWS * O_ROW <= KV_BYTES, "and O");

#if PAGED
#define PAGE_PARAMS , const int *block_table, i64 table_stride, int page_size
#define PAGE_ARGS , block_table, table_stride, page_size
#else
#define PAGE_PARAMS
#define PAGE_ARGS
#endif
#if WINDOW
#define WINDOW_PARAMS , int window_left, int window_right
#define WINDOW_ARGS , window_left, window_right
#else
#define WINDOW_PARAMS
#define WINDOW_ARGS
#endif

// ---- lengths, pages ---------------------------------------------------------------------------
// Keys of a sequence with the new ones; what would lie past the cache is cut off.
__device__ __forceinline__ int keys_of(const int* cache_seqlens, int batch, int seqlen_new,
                                       int capacity) {
    const i64 total = i64(max(0, cache_seqlens[batch])) + seqlen_new;
    return int(min(total, i64(capacity)));
}

// Where the keys of one sequence and head lie.
struct Cache {
    const io_t* base;  // of its head
    i64 row;
#if PAGED
    const int* table;
    i64 page_stride;
    int page_size;
#endif

    __device__ __forceinline__ Cache(const io_t* array, const Strides& strides, i64 batch,
                                     i64 head PAGE_PARAMS)
        : base(array + head * strides.head), row(strides.row) {
#if PAGED
        table = block_table + batch * table_stride;
        page_stride = strides.batch;
        this->page_size = page_size;
#else
        base += batch * strides.batch;
#endif
    }
    // The page of a tile's keys.
    __device__ __forceinline__ int page_of(int tile, Traffic& traffic) const {
#if PAGED
        if (threadIdx.x % WARP == 0) traffic.read(TENSOR_MASK, sizeof(int));  // once for all lanes
        return table[tile * KEYS / page_size];
#else
        return 0;
#endif
    }
    // The first key of a tile.
    __device__ __forceinline__ const io_t* keys(int tile, int page) const {
#if PAGED
        return base + page * page_stride + i64(tile * KEYS % page_size) * row;
#else
        return base + i64(tile) * KEYS * row;
#endif
    }
};

// ---- rows into shared memory ------------------------------------------------------------------
// Elements of chunk `chunk` of a row.
__device__ __forceinline__ int elements_of(int chunk) {
    return HEAD_DIM % CHUNK == 0 ? CHUNK : min(CHUNK, HEAD_DIM - chunk * CHUNK);
}

__device__ __forceinline__ void store_chunk_shared(unsigned to, const uint4& bits) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y),
                 "r"(bits.z), "r"(bits.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared(unsigned from) {
    uint4 bits;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "r"(from)
                 : "memory");
    return bits;
}

__device__ __forceinline__ void zero_row(unsigned row_smem, int first_chunk) {
    for (int chunk = first_chunk; chunk < HEAD_DIM_PAD / CHUNK; ++chunk)
        store_chunk_shared(row_smem + 16 * chunk, make_uint4(0, 0, 0, 0));
}

#if BULK
// mbarrier: one arrival a phase, and the bytes that are announced with it.
__device__ __forceinline__ void barrier_init(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, int nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(nbytes)
                 : "memory");
}
__device__ __forceinline__ bool barrier_passed(unsigned barrier, int phase) {
    int passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.s32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(barrier), "r"(phase)
        : "memory");
    return passed != 0;
}
__device__ __forceinline__ void copy_bulk(unsigned to, const io_t* from, int nbytes,
                                          unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to), "l"(from), "r"(nbytes), "r"(barrier)
        : "memory");
}
#else
// A chunk of a row, zero as far as it does not exist.
__device__ __forceinline__ void copy_chunk(unsigned row_smem, const io_t* row, int chunk,
                                           bool exists, int tensor, Traffic& traffic) {
    const int n = exists ? elements_of(chunk) : 0;
#if ALIGNED
    copy_async(row_smem + 16 * chunk, row + chunk * CHUNK, 2 * n);
    traffic.read(tensor, 2 * n);
#else
    store_chunk_shared(row_smem + 16 * chunk,
                       load_chunk<false>(row + chunk * CHUNK, n, tensor, traffic).bits);
#endif
}
#endif

// A warp's keys on their way: step i lies where step i - STAGES was.
struct Ring {
    unsigned place, barriers;  // of this warp
    int lane;

    __device__ __forceinline__ Ring(unsigned kv_smem, unsigned barriers_smem, int warp, int lane)
        : place(kv_smem + warp * STAGES * STAGE_BYTES), barriers(barriers_smem + warp * STAGES * 8),
          lane(lane) {
        // Columns that no copy reaches.
        if (ROW_CHUNKS * CHUNK < HEAD_DIM_PAD)
            for (int row = lane; row < STAGES * STEP_TILES * 2 * KEYS; row += WARP)
                zero_row(place + row * ROW_BYTES, ROW_CHUNKS);
#if BULK
        for (int stage = lane; stage < STAGES; stage += WARP) barrier_init(barriers + 8 * stage);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
        __syncwarp();  // barriers and zeros are there for all lanes
    }
    // A tile of K, behind which V's lies.
    __device__ __forceinline__ unsigned tile(int step, int i) const {
        return place + step % STAGES * STAGE_BYTES + i * 2 * TILE_BYTES;
    }
    // Copies a tile of K and of V, of which `count` keys exist.
    __device__ __forceinline__ void copy(int step, int i, const io_t* k, i64 k_row, const io_t* v,
                                         i64 v_row, int count, Traffic& traffic) const {
        const unsigned to = tile(step, i);
#if BULK
        const int n = max(0, min(KEYS, count));
        if (lane == 0 && n > 0) {
            const unsigned barrier = barriers + step % STAGES * 8;
            copy_bulk(to, k, n * ROW_BYTES, barrier);
            copy_bulk(to + TILE_BYTES, v, n * ROW_BYTES, barrier);
            traffic.read(TENSOR_K, n * ROW_BYTES);
            traffic.read(TENSOR_V, n * ROW_BYTES);
        }
        // P is 0 for keys that do not exist, but 0 times NaN is not.
        if (lane >= n && lane < KEYS) zero_row(to + TILE_BYTES + lane * ROW_BYTES, 0);
#else
        for (int number = lane; number < KEYS * ROW_CHUNKS; number += WARP) {
            const int row = number / ROW_CHUNKS, chunk = number % ROW_CHUNKS;
            const unsigned row_smem = to + row * ROW_BYTES;
            copy_chunk(row_smem, k + row * k_row, chunk, row < count, TENSOR_K, traffic);
            copy_chunk(row_smem + TILE_BYTES, v + row * v_row, chunk, row < count, TENSOR_V,
                       traffic);
        }
#endif
    }
    // Ends the copies of a step of `keys` keys, which may be none.
    __device__ __forceinline__ void commit(int step, int keys) const {
#if BULK
        if (lane == 0 && keys > 0)
            barrier_expect(barriers + step % STAGES * 8, keys * 2 * ROW_BYTES);
#else
        copy_async_commit();
#endif
    }
    // Until the copies of a step are there.
    __device__ __forceinline__ void wait(int step) const {
#if BULK
        while (!barrier_passed(barriers + step % STAGES * 8, step / STAGES % 2)) {}
#else
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
        __syncwarp();  // those of the other lanes, and zeros
    }
};

// ---- rows of q --------------------------------------------------------------------------------
// Row `row` of the group: which head of it, and which row of q.
struct PackedRow {
    int head, i;

    __device__ __forceinline__ PackedRow(int row, int seqlen_q)
        : head(row / seqlen_q), i(row - row / seqlen_q * seqlen_q) {}
};

// The keys begin .. end - 1 that a row attends.
struct RowKeys {
    int begin, end;

    __device__ __forceinline__ RowKeys(int i, int seqlen_q, int total WINDOW_PARAMS) {
        const i64 at = i64(total) - seqlen_q + i;  // where the row stands; before key 0: nowhere
        begin = 0;
        end = int(max(i64(0), at + 1));
#if WINDOW
        begin = int(max(i64(0), at - window_left));
        end = int(max(i64(0), min(at, at + window_right) + 1));
#endif
    }
};

// Of every tile of 16 keys: c[0], c[1] key g of rows 2 t and 2 t + 1; c[2], c[3] key g + 8.
using Scores = float[STEP_TILES][ROW_FRAGS][4];
using Sums = float[ROW_FRAGS][2];     // a number for rows 2 t and 2 t + 1
using Output = float[O_FRAGS][ROW_FRAGS][4];  // c[0], c[1] a column of these rows; then the next

// S^T = K Q^T of one tile. Of 32 columns a lane reads the 8 from 8 t on; the product takes them in
// that order, and Q's likewise: a sum has no order.
__device__ __forceinline__ void scores(float (&s)[ROW_FRAGS][4], unsigned k_tile, unsigned q_smem,
                                       int lane) {
    // Two sums: a product need not wait for the one before.
    float halves_rmem[2][ROW_FRAGS][4] = {};
    const unsigned keys = k_tile + lane / 4 * ROW_BYTES + lane % 4 * 16;
    const unsigned rows = q_smem + lane / 4 * Q_ROW_BYTES + lane % 4 * 16;
#pragma unroll
    for (int c = 0; c < K_CHUNKS; ++c) {
        const uint4 low = load_shared(keys + 64 * c);
        const uint4 high = load_shared(keys + 8 * ROW_BYTES + 64 * c);
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n) {
            const uint4 row = load_shared(rows + 8 * n * Q_ROW_BYTES + 64 * c);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned a[4] = {word(low, 2 * half), word(high, 2 * half),
                                       word(low, 2 * half + 1), word(high, 2 * half + 1)};
                mma(halves_rmem[half][n], a, word(row, 2 * half), word(row, 2 * half + 1));
            }
        }
    }
#pragma unroll
    for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[n][c] = halves_rmem[0][n][c] + halves_rmem[1][n][c];
}

__device__ __forceinline__ float larger(float a, float b) {
    return fmaxf(a, b);
}

// `op` over the 8 lanes that have other keys of the same rows.
template <typename Op>
__device__ __forceinline__ float over_keys(float value, Op op) {
    for (int offset = 4; offset < WARP; offset *= 2)
        value = op(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

// ---- a warp's part of a split -------------------------------------------------------------------
struct Warp {
    Output o;
    Sums m, l;  // m in log2 units; l of this lane's keys until `finish`

    __device__ __forceinline__ Warp() {
#pragma unroll
        for (int f = 0; f < O_FRAGS; ++f)
#pragma unroll
            for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) o[f][n][c] = 0.f;
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n) {
            m[n][0] = m[n][1] = -INF;
            l[n][0] = l[n][1] = 0.f;
        }
    }
    // One step of the online softmax: S^T becomes P^T, and m, l and O are brought up to date.
    __device__ __forceinline__ void softmax(Scores& s) {
        bool any_grows = false;
        Sums alpha;
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float largest = -INF;
#pragma unroll
                for (int tile = 0; tile < STEP_TILES; ++tile)
                    largest = fmaxf(largest, fmaxf(s[tile][n][j], s[tile][n][j + 2]));
                largest = over_keys(largest, larger);
                const bool grows = largest > m[n][j];
                alpha[n][j] = grows ? fast_exp2(m[n][j] - largest) : 1.f;
                if (grows) m[n][j] = largest;
                any_grows |= grows;
                // A row that has seen only masked keys has m = -inf; -inf - -inf would be NaN.
                const float m_safe = m[n][j] == -INF ? 0.f : m[n][j];
                l[n][j] *= alpha[n][j];
#pragma unroll
                for (int tile = 0; tile < STEP_TILES; ++tile)
#pragma unroll
                    for (int c = j; c < 4; c += 2) {
                        s[tile][n][c] = fast_exp2(s[tile][n][c] - m_safe);
                        l[n][j] += s[tile][n][c];
                    }
            }
        if (__any_sync(ALL_LANES, any_grows)) scale(alpha);
    }
    __device__ __forceinline__ void scale(const Sums& factor) {
#pragma unroll
        for (int f = 0; f < O_FRAGS; ++f)
#pragma unroll
            for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) o[f][n][c] *= factor[n][c % 2];
    }
    // O^T += V^T P^T of one tile. Of 64 columns a lane reads the 8 from 8 g on, of the keys 2 t,
    // 2 t + 1, 2 t + 8 and 2 t + 9. Row g of fragment i of them is column 8 g + 2 i, row g + 8 the
    // next one.
    __device__ __forceinline__ void add_product(const float (&p)[ROW_FRAGS][4], unsigned v_tile,
                                                int lane) {
        unsigned b[ROW_FRAGS][2];
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n) {
            b[n][0] = transposed(pack(p[n][0], p[n][1]));
            b[n][1] = transposed(pack(p[n][2], p[n][3]));
        }
        const unsigned from = v_tile + lane % 4 * 2 * ROW_BYTES + lane / 4 * 16;
#pragma unroll
        for (int c = 0; c < V_CHUNKS; ++c) {
            uint4 key[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                key[i] = load_shared(from + (i % 2 + i / 2 * 8) * ROW_BYTES + 128 * c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // Pairs of neighbouring keys, where memory has pairs of neighbouring columns.
                unsigned a[4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const unsigned even = word(key[2 * half], i), odd = word(key[2 * half + 1], i);
                    a[2 * half] = __byte_perm(even, odd, 0x5410);
                    a[2 * half + 1] = __byte_perm(even, odd, 0x7632);
                }
#pragma unroll
                for (int n = 0; n < ROW_FRAGS; ++n) mma(o[4 * c + i][n], a, b[n][0], b[n][1]);
            }
        }
    }
    // All warps of the block into warp 0: first in terms of one maximum, then two by two.
    __device__ __forceinline__ void merge(float* m_smem, float* l_smem, float* o_smem, int warp,
                                          int lane) {
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                l[n][j] = over_keys(l[n][j], [](float a, float b) { return a + b; });
                const int row = 8 * n + lane % 4 * 2 + j;
                if (lane < 4) m_smem[warp * GROUP_ROWS + row] = m[n][j];
                if (lane < 4) l_smem[warp * GROUP_ROWS + row] = l[n][j];
            }
        __syncthreads();  // m and l of all warps are there
        Sums factor;
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float* all_m_smem = m_smem + 8 * n + lane % 4 * 2 + j;
                const float* all_l_smem = all_m_smem + WARPS * GROUP_ROWS;
                float largest = -INF, total = 0.f;
                for (int w = 0; w < WARPS; ++w)
                    largest = fmaxf(largest, all_m_smem[w * GROUP_ROWS]);
                const float m_safe = largest == -INF ? 0.f : largest;
                for (int w = 0; w < WARPS; ++w)
                    total += all_l_smem[w * GROUP_ROWS] *
                             fast_exp2(all_m_smem[w * GROUP_ROWS] - m_safe);
                factor[n][j] = fast_exp2(m[n][j] - m_safe);
                m[n][j] = largest;
                l[n][j] = total;
            }
        scale(factor);
        for (int half = WARPS / 2; half > 0; half /= 2) {
            float* part_smem = o_smem + (warp % half) * O_VALUES * WARP + lane;
            if (warp >= half && warp < 2 * half) {
#pragma unroll
                for (int i = 0; i < O_VALUES; ++i)
                    part_smem[i * WARP] = o[i / 4 / ROW_FRAGS][i / 4 % ROW_FRAGS][i % 4];
            }
            __syncthreads();  // the upper half is there
            if (warp < half) {
#pragma unroll
                for (int i = 0; i < O_VALUES; ++i)
                    o[i / 4 / ROW_FRAGS][i / 4 % ROW_FRAGS][i % 4] += part_smem[i * WARP];
            }
            __syncthreads();  // and has been added, before others take its place
        }
    }
    // O by rows, before it is divided by l.
    __device__ __forceinline__ void store(float* o_smem, int lane) const {
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int f = 0; f < O_FRAGS; ++f) {
                    const int d = f / 4 * 64 + lane / 4 * 8 + f % 4 * 2;
                    float* at = o_smem + (8 * n + lane % 4 * 2 + j) * O_ROW + d;
                    at[0] = o[f][n][j];
                    at[1] = o[f][n][j + 2];
                }
    }
    __device__ __forceinline__ void store_statistics(float* m_smem, float* l_smem,
                                                     int lane) const {
        if (lane >= 4) return;
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                m_smem[8 * n + lane * 2 + j] = m[n][j];
                l_smem[8 * n + lane * 2 + j] = l[n][j];
            }
    }
};

// ---- the splits of a cluster ------------------------------------------------------------------
// From sm_90 on blocks of a cluster read each other's shared memory: a few splits need no HBM and
// no second launch to be merged.
#if CLUSTER > 1
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS) __cluster_dims__(CLUSTER, 1, 1)

// Until all blocks of the cluster are here; what they wrote to shared memory is seen by all.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// The same place in the shared memory of another block.
__device__ __forceinline__ unsigned in_block(unsigned address, int block) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
__device__ __forceinline__ float load_cluster(unsigned address) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ float4 load_cluster_four(unsigned address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

// Eight columns of one row from those of every split, where they stand in each block; its lse. A
// split that saw no key of the row has l 0, and in O whatever it had from masked keys.
__device__ __forceinline__ float merge_splits(float (&eight)[CHUNK], unsigned m_at, unsigned l_at,
                                              unsigned o_at) {
    float m[CLUSTER], l[CLUSTER], largest = -INF, total = 0.f;
    float4 o_rmem[CLUSTER][2];
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) {
        m[i] = load_cluster(in_block(m_at, i));
        l[i] = load_cluster(in_block(l_at, i));
        o_rmem[i][0] = load_cluster_four(in_block(o_at, i));
        o_rmem[i][1] = load_cluster_four(in_block(o_at, i) + 16);
        largest = fmaxf(largest, m[i]);
    }
    const float m_safe = largest == -INF ? 0.f : largest;
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) eight[e] = 0.f;
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) {
        if (l[i] == 0.f) continue;
        const float weight = fast_exp2(m[i] - m_safe);
        total += weight * l[i];
        const float4 low = o_rmem[i][0], high = o_rmem[i][1];
        const float part[CHUNK] = {low.x,  low.y,  low.z,  low.w,
                                   high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) eight[e] += weight * part[e];
    }
    if (total == 0.f) return -INF;
    const float factor = 1.f / total;
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) eight[e] *= factor;
    return largest * LN2 + logf(total);
}
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS)
#endif

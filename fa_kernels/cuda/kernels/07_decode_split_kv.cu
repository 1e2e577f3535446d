// Decoding with a KV cache: few query rows against many keys, the keys split over the whole GPU.
//
// Source: Flash-Decoding (Dao et al., 2023) and FlashAttention-2 (arXiv 2307.08691), section 3.1:
//   a split is an online softmax over its keys, and splits are merged by their lse. Pages are those
//   of PagedAttention (arXiv 2309.06180). Differs in that warps share nothing until the end: each
//   copies the keys that it will multiply itself, STAGES steps ahead, and the loop has no barrier.
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, capacity, HEAD_DIM),
//   with -DPAGED (pages, nheads_kv, page_size, HEAD_DIM) and block_table [batch, table_stride]
//   int32; any batch/head/row strides, last axis contiguous; fp16 or bf16. cache_seqlens [batch]
//   int32: keys there are before the seqlen_new new ones, which _append puts behind them.
//   lse (batch, nheads, seqlen_q) fp32, natural log. partial_out (splits, batch, nheads, seqlen_q,
//   HEAD_DIM) and partial_lse (splits, batch, nheads, seqlen_q), fp32, contiguous.
//   Row i of q stands at key total - seqlen_q + i, and attends no key after it.
// Launch: THREADS per block; grid and dynamic shared memory of
//   decode_split_kv_append  a thread for 8 elements of k_new and of v_new            none
//   decode_split_kv_attend  batch * nheads_kv * num_splits * ceil(rows / GROUP_ROWS) SMEM_BYTES
//   decode_split_kv_merge   a block for every row of out                             none
//   The seqlen_q rows of all heads that share a head of k are one tile of `rows`. Warps take turns
//   with its keys and put together at the end what each has found. Append only with new keys, merge
//   only with more splits than a CLUSTER has blocks: one, or all splits of the same rows.
// SRAM, bytes (SMEM_BYTES): 2 HEAD_DIM_PAD + 64 for each of GROUP_ROWS rows of q; 64 HEAD_DIM_PAD
//   for every tile of 16 keys of K and V, of which each warp has STAGES STEP_TILES; 8 WARPS
//   GROUP_ROWS for m and l; 8 WARPS STAGES for barriers. In the end O passes through the place of
//   K and V.
// HBM, elements per (batch, head of k): 2 total d for each GROUP_ROWS rows of q; with a merge also
//   2 num_splits rows (d + 1) fp32 for what splits leave and it reads. A cluster leaves nothing.
// Numerics: products of 16-bit operands in fp32; m, l and O in fp32; P is rounded to the io dtype.
//   The same bits at every run; other splits round otherwise. A row that attends no key gives out
//   0 and lse -inf. NaN or inf in a row of V reaches the rows of q that read its 16 keys.
// Architectures: sm_80 and later; clusters from sm_90 on.
// Changed from 05: K and V are read once and nothing is computed twice with them, so HBM is the
//   limit and tensor cores are there to stay out of the way. Operands are swapped: K and V^T are
//   the 16 rows of an mma, and the few rows of q its 8 columns, of which fewer are empty; columns
//   of K and V are taken in an order in which a lane reads 16 bytes at once. From sm_90 on a tile
//   whose rows lie behind one another is one bulk copy, and up to 8 splits are a cluster of blocks:
//   each merges a share of the columns out of the shared memory of all.
// Limits and verdict: bound by HBM where the cache exceeds L2, by launches where it is small. A
//   cluster of more than two blocks pays only where each has an SM to itself (plan_decode.py).

#include "decode.cuh"
#include "io.cuh"
#include "mma.cuh"

static_assert(SMEM_BYTES == Q_BYTES + KV_BYTES + 8 * WARPS * GROUP_ROWS + 8 * WARPS * STAGES,
              "SMEM_BYTES does not match the layout: fix plan_decode.py or this file");

extern "C" __global__ void LAUNCH_BOUNDS
decode_split_kv_attend(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                       const io_t* v, Strides v_strides, io_t* out, Strides out_strides, float* lse,
                       float* partial_out, float* partial_lse, const int* cache_seqlens,
                       int nheads, int kv_group, int seqlen_q, int seqlen_new, int capacity,
                       int num_splits WINDOW_PARAMS, float scale PAGE_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    unsigned char* kv_smem = smem_bytes + Q_BYTES;                 // [WARPS, STAGES] steps
    float* m_smem = reinterpret_cast<float*>(kv_smem + KV_BYTES);  // [WARPS, GROUP_ROWS]
    float* l_smem = m_smem + WARPS * GROUP_ROWS;                   // [WARPS, GROUP_ROWS]
    const unsigned q_smem = smem_address(smem_bytes);              // [GROUP_ROWS, HEAD_DIM]
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    const int rows = kv_group * seqlen_q, row_blocks = ceil_div(rows, GROUP_ROWS);
#if CLUSTER > 1
    // The splits of the same rows are neighbours: a cluster.
    const int split = blockIdx.x % CLUSTER;
    const int row0 = blockIdx.x / CLUSTER % row_blocks * GROUP_ROWS;
#else
    // Blocks of the same keys are neighbours: the second finds them in L2.
    const int row0 = blockIdx.x % row_blocks * GROUP_ROWS;
    const int split = blockIdx.x / row_blocks % num_splits;
#endif
    const int batch_kv = blockIdx.x / row_blocks / num_splits, nheads_kv = nheads / kv_group;
    const i64 batch = batch_kv / nheads_kv, kv_head = batch_kv % nheads_kv;
    const int total = keys_of(cache_seqlens, batch, seqlen_new, capacity);

    // Tiles that some row attends, and this split's share of them.
    const int first = RowKeys(0, seqlen_q, total WINDOW_ARGS).begin / KEYS;
    const int per = ceil_div(max(0, ceil_div(total, KEYS) - first), num_splits);
    const int begin = first + split * per, stop = min(ceil_div(total, KEYS), begin + per);

    Traffic traffic;
    const Cache key_cache(k, k_strides, batch, kv_head PAGE_ARGS);
    const Cache value_cache(v, v_strides, batch, kv_head PAGE_ARGS);
    // Step i of this warp has the tiles from begin + (i WARPS + warp) STEP_TILES on. Pages are
    // looked up a step before they are needed.
    const int key_stop = min(total, stop * KEYS);
    const Ring ring(smem_address(kv_smem), smem_address(l_smem + WARPS * GROUP_ROWS), warp, lane);
    const auto tile_of = [&](int step) { return begin + (step * WARPS + warp) * STEP_TILES; };
    int pages[STEP_TILES] = {};
    const auto look_up = [&](int step) {
        if (!PAGED) return;
#pragma unroll
        for (int i = 0; i < STEP_TILES; ++i)
            if (tile_of(step) + i < stop) pages[i] = key_cache.page_of(tile_of(step) + i, traffic);
    };
    const auto copy_step = [&](int step) {
        const int tile0 = tile_of(step), count = key_stop - tile0 * KEYS;
        if (count > 0) {
#pragma unroll
            for (int i = 0; i < STEP_TILES; ++i)
                ring.copy(step, i, key_cache.keys(tile0 + i, pages[i]), key_cache.row,
                          value_cache.keys(tile0 + i, pages[i]), value_cache.row, count - i * KEYS,
                          traffic);
        }
        ring.commit(step, min(count, STEP_KEYS));
        look_up(step + 1);
    };
    look_up(0);
    for (int step = 0; step < STAGES - 1; ++step) copy_step(step);

    // The rows of q, of which every warp needs all.
    if (begin < stop) {
        constexpr int CHUNKS = HEAD_DIM_PAD / CHUNK;
        for (int i = threadIdx.x; i < GROUP_ROWS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS;
            const PackedRow at(row0 + row, seqlen_q);
            const io_t* src = q + batch * q_strides.batch +
                              (kv_head * kv_group + at.head) * q_strides.head +
                              i64(at.i) * q_strides.row + chunk * CHUNK;
            const bool exists = row0 + row < rows && chunk < ROW_CHUNKS;
            *reinterpret_cast<uint4*>(smem_bytes + row * Q_ROW_BYTES + chunk * 16) =
                load_chunk<ALIGNED>(src, exists ? elements_of(chunk) : 0, TENSOR_Q, traffic).bits;
        }
    }
    __syncthreads();  // Q is in shared memory
    // The keys that all rows of the block attend.
    const int all_begin = RowKeys(seqlen_q - 1, seqlen_q, total WINDOW_ARGS).begin;
    const int all_end = RowKeys(0, seqlen_q, total WINDOW_ARGS).end;

    Warp mine;
    for (int step = 0; tile_of(step) < stop; ++step) {
        ring.wait(step);  // also: every lane is done with the step before, whose place is next
        copy_step(step + STAGES - 1);
        const int key0 = tile_of(step) * KEYS;
        Scores s;
#pragma unroll
        for (int i = 0; i < STEP_TILES; ++i) {
            scores(s[i], ring.tile(step, i), q_smem, lane);
#pragma unroll
            for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) s[i][n][c] *= scale;
        }
        if (key0 < all_begin || key0 + STEP_KEYS > min(all_end, key_stop)) {
#pragma unroll
            for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const PackedRow at(row0 + 8 * n + lane % 4 * 2 + c % 2, seqlen_q);
                    const RowKeys attended(at.i, seqlen_q, total WINDOW_ARGS);
#pragma unroll
                    for (int i = 0; i < STEP_TILES; ++i) {
                        const int key = key0 + i * KEYS + lane / 4 + c / 2 * 8;
                        if (key < attended.begin || key >= min(attended.end, key_stop))
                            s[i][n][c] = -INF;
                    }
                }
        }
        mine.softmax(s);
#pragma unroll
        for (int i = 0; i < STEP_TILES; ++i)
            mine.add_product(s[i], ring.tile(step, i) + TILE_BYTES, lane);
    }
    copy_async_wait();  // before accumulators pass through the place of K and V
    mine.merge(m_smem, l_smem, reinterpret_cast<float*>(kv_smem), warp, lane);

    float* o_smem = reinterpret_cast<float*>(kv_smem);  // [GROUP_ROWS, O_ROW]
    const auto number_of = [&](int row) {
        const PackedRow at(row, seqlen_q);
        return (batch * nheads + kv_head * kv_group + at.head) * seqlen_q + at.i;
    };
    const auto store_out = [&](int row, int chunk, const float (&eight)[CHUNK]) {
        const PackedRow at(row, seqlen_q);
        store_chunk<ALIGNED>(out + batch * out_strides.batch +
                                 (kv_head * kv_group + at.head) * out_strides.head +
                                 at.i * out_strides.row + chunk * CHUNK,
                             eight, elements_of(chunk), TENSOR_OUT, traffic);
    };
    if (warp == 0) mine.store(o_smem, lane);
#if CLUSTER > 1
    // What the splits have found stays on chip: each block of the cluster puts a share of the rows'
    // columns together from the shared memory of all.
    if (warp == 0) mine.store_statistics(m_smem, l_smem, lane);
    meet_cluster();  // O, m and l of every split are there
    const int chunks = min(GROUP_ROWS, rows - row0) * ROW_CHUNKS;
    for (int i = threadIdx.x * CLUSTER + split; i < chunks; i += THREADS * CLUSTER) {
        const int row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        float eight[CHUNK];
        const float row_lse = merge_splits(eight, smem_address(m_smem + row),
                                           smem_address(l_smem + row),
                                           smem_address(o_smem + row * O_ROW + chunk * CHUNK));
        store_out(row0 + row, chunk, eight);
        if (chunk == 0) {
            lse[number_of(row0 + row)] = row_lse;
            traffic.write(TENSOR_LSE, 4);
        }
    }
    meet_cluster();  // before this block ends and its shared memory with it, others are done there
#else
    // 1 / l, where m was; lse.
    const i64 rows_of_split = i64(gridDim.x) / row_blocks / num_splits * rows;
    if (warp == 0 && lane < 4) {
#pragma unroll
        for (int n = 0; n < ROW_FRAGS; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int row = 8 * n + lane * 2 + j;
                const float l = mine.l[n][j];
                m_smem[row] = l == 0.f ? 0.f : 1.f / l;
                if (row0 + row >= rows) continue;
                const float row_lse = l == 0.f ? -INF : mine.m[n][j] * LN2 + logf(l);
                const i64 number = number_of(row0 + row);
                if (num_splits == 1)
                    lse[number] = row_lse;
                else
                    partial_lse[split * rows_of_split + number] = row_lse;
                traffic.write(TENSOR_LSE, 4);
            }
    }
    __syncthreads();  // O is there
    for (int i = threadIdx.x; i < GROUP_ROWS * ROW_CHUNKS; i += THREADS) {
        const int row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS, d = chunk * CHUNK;
        const int n = elements_of(chunk);
        const float factor = m_smem[row];
        // A split that saw no key of a row leaves nothing but lse -inf.
        if (row0 + row >= rows || (num_splits > 1 && factor == 0.f)) continue;
        float eight[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)  // 0 times a NaN in V is NaN: a row without a key has 0
            eight[e] = factor == 0.f ? 0.f : o_smem[row * O_ROW + d + e] * factor;
        if (num_splits == 1) {
            store_out(row0 + row, chunk, eight);
        } else {
            float* to =
                partial_out + (split * rows_of_split + number_of(row0 + row)) * HEAD_DIM + d;
            traffic.write(TENSOR_OUT, 4 * n);
#pragma unroll
            for (int e = 0; e < CHUNK; ++e)
                if (e < n) to[e] = eight[e];
        }
    }
#endif
    TRAFFIC_FLUSH(traffic);
}

// out and lse of every row from those of its splits, of which each warp reads some. A split that
// saw no key of a row left lse -inf and no out.
extern "C" __global__ void __launch_bounds__(THREADS)
decode_split_kv_merge(const float* partial_out, const float* partial_lse, io_t* out,
                      Strides out_strides, float* lse, int nheads, int seqlen_q, i64 rows,
                      int num_splits TRAFFIC_PARAM) {
    __shared__ float weight_smem[MAX_SPLITS];
    __shared__ float sum_smem[WARPS][HEAD_DIM_PAD];
    __shared__ float total_smem;
    constexpr int COLUMNS = HEAD_DIM_PAD / WARP, BATCH = 10;
    constexpr float UNSEEN = -1.f;  // in place of a weight
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i64 number = blockIdx.x;
    Traffic traffic;
    if (warp == 0) {
        constexpr int EACH = MAX_SPLITS / WARP;
        float values[EACH], largest = -INF, total = 0.f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int split = i * WARP + lane;
            values[i] = -INF;
            if (split >= num_splits) continue;
            values[i] = partial_lse[split * rows + number];
            traffic.read(TENSOR_LSE, 4);
            largest = fmaxf(largest, values[i]);
        }
        largest = reduce_lanes(largest, WARP, larger);
        const float m_safe = largest == -INF ? 0.f : largest;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const float weight = fast_exp2((values[i] - m_safe) * LOG2E);
            weight_smem[i * WARP + lane] = values[i] == -INF ? UNSEEN : weight;
            total += weight;
        }
        total = reduce_lanes(total, WARP, [](float a, float b) { return a + b; });
        if (lane == 0) {
            total_smem = total;
            lse[number] = total == 0.f ? -INF : largest + logf(total);
            traffic.write(TENSOR_LSE, 4);
        }
    }
    __syncthreads();  // weights are there
    float sum[COLUMNS] = {};
    for (int first = warp; first < num_splits; first += BATCH * WARPS) {
        // All of a batch's loads are on their way before the first is used.
        float values_rmem[BATCH][COLUMNS];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int split = first + i * WARPS;
            const bool seen = split < num_splits && weight_smem[split] != UNSEEN;
            const float* part = partial_out + (split * rows + number) * HEAD_DIM;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const int d = c * WARP + lane;
                values_rmem[i][c] = seen && d < HEAD_DIM ? part[d] : 0.f;
                if (seen && d < HEAD_DIM) traffic.read(TENSOR_OUT, 4);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                if (first + i * WARPS < num_splits)  // of a split unseen the value is 0
                    sum[c] += weight_smem[first + i * WARPS] * values_rmem[i][c];
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum_smem[warp][c * WARP + lane] = sum[c];
    __syncthreads();  // every warp's sum is there
    const float total = total_smem, factor = total == 0.f ? 0.f : 1.f / total;
    const i64 bh = number / seqlen_q;
    out += bh / nheads * out_strides.batch + bh % nheads * out_strides.head +
           number % seqlen_q * out_strides.row;
    for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
        float value = 0.f;
        for (int w = 0; w < WARPS; ++w) value += sum_smem[w][d];
        out[d] = from_float(value * factor);
        traffic.write(TENSOR_OUT, sizeof(io_t));
    }
    TRAFFIC_FLUSH(traffic);
}

// k_new and v_new behind the keys there are; what does not fit is left out.
extern "C" __global__ void __launch_bounds__(THREADS)
decode_split_kv_append(const io_t* k_new, Strides k_new_strides, const io_t* v_new,
                       Strides v_new_strides, io_t* k, Strides k_strides, io_t* v,
                       Strides v_strides, const int* cache_seqlens, i64 chunks, int nheads_kv,
                       int seqlen_new, int capacity PAGE_PARAMS TRAFFIC_PARAM) {
    const i64 number = i64(blockIdx.x) * THREADS + threadIdx.x;
    Traffic traffic;
    const int chunk = number % ROW_CHUNKS, d = chunk * CHUNK, n = elements_of(chunk);
    const int i = number / ROW_CHUNKS % seqlen_new;
    const i64 head = number / ROW_CHUNKS / seqlen_new % nheads_kv;
    const i64 batch = number / ROW_CHUNKS / seqlen_new / nheads_kv;
    if (number < chunks) {
        const i64 key = i64(max(0, cache_seqlens[batch])) + i;
        if (key < capacity) {
            i64 lead = batch, row = key;
#if PAGED
            lead = block_table[batch * table_stride + key / page_size];
            row = key % page_size;
            traffic.read(TENSOR_MASK, sizeof(int));
#endif
            const auto move = [&](const io_t* from, const Strides& from_strides, io_t* to,
                                  const Strides& to_strides, int tensor) {
                from += batch * from_strides.batch + head * from_strides.head +
                        i * from_strides.row + d;
                to += lead * to_strides.batch + head * to_strides.head + row * to_strides.row + d;
                const Chunk chunk = load_chunk<ALIGNED>(from, n, tensor, traffic);
                float eight[CHUNK];
#pragma unroll
                for (int e = 0; e < CHUNK; ++e) eight[e] = element(chunk, e);
                store_chunk<ALIGNED>(to, eight, n, tensor, traffic);
            };
            move(k_new, k_new_strides, k, k_strides, TENSOR_K);
            move(v_new, v_new_strides, v, v_strides, TENSOR_V);
        }
    }
    TRAFFIC_FLUSH(traffic);
}

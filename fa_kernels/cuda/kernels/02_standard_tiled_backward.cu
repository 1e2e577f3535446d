// Gradients of standard attention in five tiled launches, P, dP and dS through HBM.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 3, with its four matrix products tiled.
//   Differs from it in skipping the tiles and elements that causal and window remove.
// Tensors: q, d_out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k,
//   HEAD_DIM); any batch/head/row strides, last axis contiguous. p, the forward's P before dropout,
//   in the io dtype, (batch, nheads, seqlen_q, seqlen_k) contiguous; of packed sequences seqlen_q
//   and seqlen_k are those of the longest. Workspace ds like p: dP, then dS in its place. dk, dv
//   like k, v; dq like q, contiguous.
// Launch: THREADS per block; grid and dynamic shared memory of
//   standard_tiled_backward_dv  a block per BLOCK_N rows of dv      PRODUCT_SMEM_BYTES
//   standard_tiled_backward_dp  a block per tile of dP              SCORES_SMEM_BYTES
//   standard_tiled_backward_ds  ROW_THREADS per row of dS           the cached rows
//   standard_tiled_backward_dq  a block per BLOCK_M rows of dq      PRODUCT_SMEM_BYTES
//   standard_tiled_backward_dk  a block per BLOCK_N rows of dk      PRODUCT_SMEM_BYTES
// SRAM, bytes: dp itemsize (BLOCK_M + BLOCK_N) d + 4 BLOCK_M BLOCK_N; ds 8 seqlen_k per row if that
//   is at most 63 KiB, else 0; the products itemsize max(BLOCK_M, BLOCK_N) d + 4 BLOCK_M BLOCK_N.
// HBM, elements per (batch, head of q), no mask: seqlen_q seqlen_k times 2 for P, 2 for dP and 3
//   for dS (P and dP one more each if rows are too long for SRAM); Q seqlen_q d ceil(seqlen_k /
//   BLOCK_N), dO twice that; K and V, each, seqlen_k d ceil(seqlen_q / BLOCK_M); dq seqlen_q d. Per
//   (batch, head of k): dk and dv seqlen_k d each. Masked elements never move.
// Numerics: products and sums in fp32; P, dP and dS are rounded to the io dtype in HBM, so fp16 dP
//   beyond 65504 overflow (03 and 04 keep them in fp32). Subnormals are flushed to zero. All
//   gradients have the same bits at every run. A row with no kept key gives dq 0 and adds 0. NaN
//   or inf in a row of q, dO or k spreads within its tiles (0 * NaN), also to what a mask drops.
// Architectures: sm_75 and later.
// Changed from 01: which has no backward; against the forward of 02 the products are the same code,
//   two of them with the left operand transposed.
// Limits and verdict: P, kept or rebuilt by the forward's first two launches, and dS are 2 batch
//   nheads seqlen_q seqlen_k itemsize bytes: what 03 and 04 show to be unnecessary.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "backward.cuh"
#include "key_tile.cuh"
#include "scores_in_hbm.cuh"

constexpr int Q_CHUNKS = BLOCK_M * HEAD_CHUNKS;
constexpr int KV_CHUNKS = BLOCK_N * HEAD_CHUNKS;
constexpr int LONGER_CHUNKS = Q_CHUNKS > KV_CHUNKS ? Q_CHUNKS : KV_CHUNKS;
static_assert(SCORES_SMEM_BYTES == 16 * (Q_CHUNKS + KV_CHUNKS) + 4 * BLOCK_M * BLOCK_N_PAD,
              "SCORES_SMEM_BYTES does not match: fix tiling.standard_scores_smem or this kernel");
static_assert(PRODUCT_SMEM_BYTES == 16 * LONGER_CHUNKS + 4 * BLOCK_M * BLOCK_N_PAD,
              "PRODUCT_SMEM_BYTES does not match: fix plan_backward or this kernel");

// result[k0:, :] = sum over the heads that share it of left^T right, for one tile of keys. `left`
// is P or dS, weigh(extras) gives what load_scores wants; `right` is dO or Q.
template <typename Weigh>
__device__ __forceinline__ void
transposed_product(const io_t* left, int left_tensor, const io_t* right, Strides right_strides,
                   int right_tensor, io_t* result, Strides result_strides, int result_tensor,
                   int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band, Weigh weigh,
                   Traffic& traffic EXTRAS_PARAMS PACKED_PARAMS) {
    extern __shared__ __align__(16) unsigned char product_smem[];
    Chunk* x_smem = reinterpret_cast<Chunk*>(product_smem);           // [BLOCK_M, HEAD_DIM]
    float* s_smem = reinterpret_cast<float*>(x_smem + LONGER_CHUNKS); // [BLOCK_M, BLOCK_N]
    const int k_tiles = ceil_div(seqlen_k, BLOCK_N);
    const int k0 = blockIdx.x % k_tiles * BLOCK_N, batch_kv = blockIdx.x / k_tiles;
    const i64 batch = batch_kv / (nheads / kv_group), kv_head = batch_kv % (nheads / kv_group);

    KeyTile tile;
    tile.clear();
    for (int member = 0; member < kv_group; ++member) {
        const i64 head = kv_head * kv_group + member, bh = batch * nheads + head;
        const Sequence seq = SEQUENCE(bh, batch, head);
        if (PACKED && k0 >= seq.seqlen_k) return;  // past the end of a shorter sequence
        const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
        const Extras extras(batch, head EXTRAS_ARGS);
        const io_t* right_head = right + seq.batch * right_strides.batch +
                                 head * right_strides.head + seq.q_row0 * right_strides.row;
        const int keys = min(BLOCK_N, range.end_of(seq.seqlen_q - 1) - k0);
        const RowTiles rows_of(range, seq.seqlen_q, k0, keys);
        for (int q_tile = rows_of.first; q_tile < rows_of.stop; ++q_tile) {
            const int q0 = q_tile * BLOCK_M, q_rows = min(BLOCK_M, seq.seqlen_q - q0);
            load_scores(s_smem, left, seqlen_q, seqlen_k, bh, range, q0, q_rows, k0, keys,
                        left_tensor, weigh(extras), traffic);
            load_tile<BLOCK_M, ALIGNED>(x_smem, right_head + q0 * right_strides.row,
                                        right_strides.row, q_rows, right_tensor, traffic);
            __syncthreads();  // both tiles are in shared memory
            tile.add_transposed_product(s_smem, x_smem, q_rows);
            __syncthreads();  // everyone is done with them before the next two overwrite them
        }
    }
    const Sequence seq = SEQUENCE(batch * nheads, batch, i64(0));
    const int owned = min(BLOCK_N, seq.seqlen_k - k0);  // keys nobody attends get 0
    result += seq.batch * result_strides.batch + kv_head * result_strides.head +
              (seq.k_row0 + k0) * result_strides.row;
    tile.store<ALIGNED>(result, result_strides.row, owned, result_tensor, traffic);
}

// dv = (P times dropout)^T dO.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
standard_tiled_backward_dv(const io_t* p, const io_t* d_out, Strides d_out_strides, io_t* dv,
                           Strides dv_strides, int nheads, int kv_group, int seqlen_q,
                           int seqlen_k, Band band EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    const auto dropout = [&](const Extras& extras) {
        return [&](int row, int col) { return extras.keep_factor(row, col, traffic); };
    };
    transposed_product(p, TENSOR_P, d_out, d_out_strides, TENSOR_D_OUT, dv, dv_strides, TENSOR_DV,
                       nheads, kv_group, seqlen_q, seqlen_k, band, dropout,
                       traffic EXTRAS_ARGS PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}

// dk = scale dS^T Q.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
standard_tiled_backward_dk(const io_t* ds, const io_t* q, Strides q_strides, io_t* dk,
                           Strides dk_strides, int nheads, int kv_group, int seqlen_q,
                           int seqlen_k, Band band,
                           float scale EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    const auto scaled = [&](const Extras&) { return [=](int, int) { return scale; }; };
    transposed_product(ds, TENSOR_DS, q, q_strides, TENSOR_Q, dk, dk_strides, TENSOR_DK, nheads,
                       kv_group, seqlen_q, seqlen_k, band, scaled,
                       traffic EXTRAS_ARGS PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}

// dp[q0:, k0:] = (dO V^T) times dropout, of one tile; only kept elements are written.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
standard_tiled_backward_dp(const io_t* d_out, Strides d_out_strides, const io_t* v,
                           Strides v_strides, io_t* dp, int nheads, int kv_group, int seqlen_q,
                           int seqlen_k, Band band EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* d_out_smem = reinterpret_cast<Chunk*>(smem);            // [BLOCK_M, HEAD_DIM]
    Chunk* v_smem = d_out_smem + Q_CHUNKS;                         // [BLOCK_N, HEAD_DIM]
    float* dp_smem = reinterpret_cast<float*>(v_smem + KV_CHUNKS); // [BLOCK_M, BLOCK_N]

    const int q_tiles = ceil_div(seqlen_q, BLOCK_M), k_tiles = ceil_div(seqlen_k, BLOCK_N);
    const int k0 = blockIdx.x % k_tiles * BLOCK_N;
    const int q0 = blockIdx.x / k_tiles % q_tiles * BLOCK_M;
    const int bh = blockIdx.x / k_tiles / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const int key_end = range.end_of(q0 + q_rows - 1);
    // Tiles that causal or window remove entirely.
    if (k0 >= key_end || k0 + BLOCK_N <= range.begin_of(q0)) return;
    const int keys = min(BLOCK_N, key_end - k0);

    Traffic traffic;
    d_out += seq.batch * d_out_strides.batch + head * d_out_strides.head +
             (seq.q_row0 + q0) * d_out_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head +
         (seq.k_row0 + k0) * v_strides.row;
    load_tile<BLOCK_M, ALIGNED>(d_out_smem, d_out, d_out_strides.row, q_rows, TENSOR_D_OUT,
                                traffic);
    load_tile<BLOCK_N, ALIGNED>(v_smem, v, v_strides.row, keys, TENSOR_V, traffic);
    __syncthreads();  // dO and V are in shared memory
    product_tile(d_out_smem, v_smem, [&](int row, int col, float product) {
        dp_smem[row * BLOCK_N_PAD + col] = product;
    });
    __syncthreads();  // dP is complete: threads now write other elements than they computed

    const auto dropped = [&](int row, int col, float value) {
        return DROPOUT ? value * extras.keep_factor(row, col, traffic) : value;
    };
    store_scores(dp, dp_smem, seqlen_q, seqlen_k, bh, range, q0, q_rows, k0, keys, TENSOR_DP,
                 dropped, traffic);
    TRAFFIC_FLUSH(traffic);
}

// ds[row, :] = p (dp - rowsum(dp p)), in place of dp.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_tiled_backward_ds(const io_t* p, io_t* ds, int nheads, int seqlen_q, int seqlen_k,
                           Band band, i64 rows PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread = threadIdx.x % ROW_THREADS;
    const i64 row_of_all = i64(blockIdx.x) * ROWS_PER_BLOCK + threadIdx.x / ROW_THREADS;
    // Rows are whole warps or whole blocks: no barrier is left waiting.
    if (row_of_all >= rows) return;
    const i64 bh = row_of_all / seqlen_q, row = row_of_all % seqlen_q;
    const i64 batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (row >= seq.seqlen_q) return;
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    float* row_smem = reinterpret_cast<float*>(smem);  // p and dp of every row of the block
    row_smem += 2 * (threadIdx.x / ROW_THREADS) * round_up(seqlen_k, CHUNK);
    const int begin = range.begin_of(row), end = range.end_of(row);
    const int first = begin / CHUNK * CHUNK + thread * CHUNK;  // chunks stay aligned
    p += row_of_all * seqlen_k;
    ds += row_of_all * seqlen_k;

    Traffic traffic;
    float delta = 0.f;
    for (int col = first; col < end; col += ROW_THREADS * CHUNK) {
        const int n = min(CHUNK, end - col), lo = WINDOW ? max(0, begin - col) : 0;
        const Chunk p_rmem = load_chunk<ROWS_ALIGNED>(p + col, n, TENSOR_P, traffic, lo);
        const Chunk dp_rmem = load_chunk<ROWS_ALIGNED>(ds + col, n, TENSOR_DP, traffic, lo);
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            const float p_e = element(p_rmem, e), dp_e = element(dp_rmem, e);
            if (e >= lo && e < n) delta += p_e * dp_e;
            if (ROW_IN_SMEM) row_smem[2 * (col + e)] = p_e;
            if (ROW_IN_SMEM) row_smem[2 * (col + e) + 1] = dp_e;
        }
    }
    delta = reduce_row(delta, 0.f, [](float a, float b) { return a + b; });
    for (int col = first; col < end; col += ROW_THREADS * CHUNK) {
        const int n = min(CHUNK, end - col), lo = WINDOW ? max(0, begin - col) : 0;
        Chunk p_rmem, dp_rmem;  // a thread reads back only what it wrote: no barrier is needed
        if (!ROW_IN_SMEM) p_rmem = load_chunk<ROWS_ALIGNED>(p + col, n, TENSOR_P, traffic, lo);
        if (!ROW_IN_SMEM) dp_rmem = load_chunk<ROWS_ALIGNED>(ds + col, n, TENSOR_DP, traffic, lo);
        float values[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            const float p_e = ROW_IN_SMEM ? row_smem[2 * (col + e)] : element(p_rmem, e);
            const float dp_e = ROW_IN_SMEM ? row_smem[2 * (col + e) + 1] : element(dp_rmem, e);
            values[e] = p_e * (dp_e - delta);
        }
        store_chunk<ROWS_ALIGNED>(ds + col, values, n, TENSOR_DS, traffic, lo);
    }
    TRAFFIC_FLUSH(traffic);
}

// dq[rows, :] = scale dS K for one tile of rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
standard_tiled_backward_dq(const io_t* ds, const io_t* k, Strides k_strides, io_t* dq, int nheads,
                           int kv_group, int seqlen_q, int seqlen_k, Band band,
                           float scale PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* k_smem = reinterpret_cast<Chunk*>(smem);                    // [BLOCK_N, HEAD_DIM]
    float* ds_smem = reinterpret_cast<float*>(k_smem + LONGER_CHUNKS); // [BLOCK_M, BLOCK_N]

    const int q_tiles = ceil_div(seqlen_q, BLOCK_M), bh = blockIdx.x / q_tiles;
    const int q0 = (q_tiles - 1 - blockIdx.x % q_tiles) * BLOCK_M;  // longest first, as in 04
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;

    Traffic traffic;
    OTile tile;
    tile.clear();
    const int key_end = range.end_of(q0 + q_rows - 1);
    for (int k0 = range.begin_of(q0) / BLOCK_N * BLOCK_N; k0 < key_end; k0 += BLOCK_N) {
        const int keys = min(BLOCK_N, key_end - k0);
        load_scores(ds_smem, ds, seqlen_q, seqlen_k, bh, range, q0, q_rows, k0, keys, TENSOR_DS,
                    [=](int, int) { return scale; }, traffic);
        load_tile<BLOCK_N, ALIGNED>(k_smem, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K,
                                    traffic);
        __syncthreads();  // dS and K are in shared memory
        tile.add_product(ds_smem, k_smem, min(BLOCK_N_PAD, round_up(keys, 4)));
        __syncthreads();  // everyone is done with dS and K before the next tile overwrites them
    }
    tile.store<ALIGNED>(dq + (seq.stats_row0 + q0) * HEAD_DIM, HEAD_DIM, q_rows, TENSOR_DQ,
                        traffic);
    TRAFFIC_FLUSH(traffic);
}

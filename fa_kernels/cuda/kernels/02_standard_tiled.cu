// Standard attention in three tiled launches, S and P through HBM: S = QK^T, softmax, O = PV.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 0, with both matrix products tiled. Differs
//   from it in skipping the tiles and elements that causal and window remove, as 04 does.
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. Workspace s, p in the io dtype,
//   (batch * nheads, seqlen_q, seqlen_k) contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log. io dtype fp16, bf16 or fp32 (io.cuh). Window, mask, bias, dropout and packed sequences
//   (S and P then have room for the longest): score.cuh. P is stored before dropout, which the
//   output launch applies.
// Launch: THREADS per block; grid and dynamic shared memory of
//   standard_tiled_scores    a block per tile of S                        SCORES_SMEM_BYTES
//   standard_tiled_softmax   ROW_THREADS per row of S                     the cached rows
//   standard_tiled_output    a block per BLOCK_M rows of O                OUTPUT_SMEM_BYTES
// SRAM, bytes: scores itemsize (BLOCK_M + BLOCK_N) d + 4 BLOCK_M BLOCK_N; softmax 4 seqlen_k per
//   row if that is at most 64 KiB, else 0; output itemsize BLOCK_N d + 4 BLOCK_M BLOCK_N.
// HBM, elements per (batch, head), no mask: seqlen_q seqlen_k times 2 for P and 2 for S (3 if its
//   rows are too long for SRAM); Q seqlen_q d ceil(seqlen_k / BLOCK_N); K and V, each, seqlen_k d
//   ceil(seqlen_q / BLOCK_M); O seqlen_q d; lse seqlen_q fp32. Masked elements never move.
// Numerics: products and sums in fp32. S and P are rounded to the io dtype in HBM, so fp16 scores
//   beyond 65504 overflow (04 keeps them in fp32); with a bias, lower ones than -65504 stay there,
//   so that a row of nothing but finfo.min still attends. Subnormal fp32 values are flushed to
//   zero. A row with no kept key gives out 0 and lse -inf. NaN in one query row stays in that row;
//   NaN or inf in a V row reaches every row of Q that shares a tile with it, masked or not (0 *
//   NaN).
// Architectures: sm_75 and later.
// Changed from 01: a tile of Q, K, P or V is read once from HBM and then reused from shared memory.
// Limits and verdict: the workspace, 2 batch nheads seqlen_q seqlen_k itemsize bytes, ends it long
//   before its time does. Its matrix products are 04's: what 04 gains is S and P in HBM alone.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "scores_in_hbm.cuh"

constexpr int Q_CHUNKS = BLOCK_M * HEAD_CHUNKS;
constexpr int KV_CHUNKS = BLOCK_N * HEAD_CHUNKS;
static_assert(SCORES_SMEM_BYTES == 16 * (Q_CHUNKS + KV_CHUNKS) + 4 * BLOCK_M * BLOCK_N_PAD,
              "SCORES_SMEM_BYTES does not match: fix tiling.standard_scores_smem or this kernel");
static_assert(OUTPUT_SMEM_BYTES == 16 * KV_CHUNKS + 4 * BLOCK_M * BLOCK_N_PAD,
              "OUTPUT_SMEM_BYTES does not match: fix tiling.standard_output_smem or this kernel");

// s[q0:, k0:] of one tile; only kept elements are written.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_tiled_scores(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, io_t* s,
                      int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band,
                      float scale EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* q_smem = reinterpret_cast<Chunk*>(smem);               // [BLOCK_M, HEAD_DIM]
    Chunk* k_smem = q_smem + Q_CHUNKS;                            // [BLOCK_N, HEAD_DIM]
    float* s_smem = reinterpret_cast<float*>(k_smem + KV_CHUNKS); // [BLOCK_M, BLOCK_N]

    const int q_tiles = (seqlen_q + BLOCK_M - 1) / BLOCK_M;
    const int k_tiles = (seqlen_k + BLOCK_N - 1) / BLOCK_N;
    const int k0 = blockIdx.x % k_tiles * BLOCK_N;
    const int q0 = blockIdx.x / k_tiles % q_tiles * BLOCK_M;
    const int bh = blockIdx.x / k_tiles / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads;
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
    q += seq.batch * q_strides.batch + head * q_strides.head + (seq.q_row0 + q0) * q_strides.row;
    k += seq.batch * k_strides.batch + (bh % nheads / kv_group) * k_strides.head +
         (seq.k_row0 + k0) * k_strides.row;
    load_tile<BLOCK_M, ALIGNED>(q_smem, q, q_strides.row, q_rows, TENSOR_Q, traffic);
    load_tile<BLOCK_N, ALIGNED>(k_smem, k, k_strides.row, keys, TENSOR_K, traffic);
    __syncthreads();  // Q and K are in shared memory
    scores_tile(s_smem, q_smem, k_smem, scale, TileMask(extras, range, q0, q_rows, k0, keys),
                traffic);
    __syncthreads();  // S is complete: threads now write other elements than they computed

    const auto storable = [](int, int, float value) { return Extras::storable(value); };
    store_scores(s, s_smem, seqlen_q, seqlen_k, bh, range, q0, q_rows, k0, keys, TENSOR_S, storable,
                 traffic);
    TRAFFIC_FLUSH(traffic);
}

// p[row] = softmax(s[row]) over the keys of its range, and lse[row].
extern "C" __global__ void __launch_bounds__(THREADS)
standard_tiled_softmax(const io_t* s, io_t* p, float* lse, int nheads, int seqlen_q, int seqlen_k,
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
    const int row_pad = round_up(seqlen_k, CHUNK);
    float* row_smem = reinterpret_cast<float*>(smem) + (threadIdx.x / ROW_THREADS) * row_pad;
    const int begin = range.begin_of(row), end = range.end_of(row);
    const int first = begin / CHUNK * CHUNK + thread * CHUNK;  // chunks stay aligned
    s += row_of_all * seqlen_k;
    p += row_of_all * seqlen_k;

    Traffic traffic;
    float m = -INF, l = 0.f;
    for (int col = first; col < end; col += ROW_THREADS * CHUNK) {
        const int n = min(CHUNK, end - col), lo = WINDOW ? max(0, begin - col) : 0;
        const Chunk chunk = load_chunk<ROWS_ALIGNED>(s + col, n, TENSOR_S, traffic, lo);
        float m_new = m;
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            const float value = element(chunk, e);
            if (e >= lo && e < n) m_new = fmaxf(m_new, value);
            if (ROW_IN_SMEM) row_smem[col + e] = value;
        }
        // Online within the thread, so that a row too long for SRAM is read twice, not three times.
        const float m_safe = m_new == -INF ? 0.f : m_new;
        l *= exp2f((m - m_safe) * LOG2E);
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
            if (e >= lo && e < n) l += exp2f((element(chunk, e) - m_safe) * LOG2E);
        m = m_new;
    }
    const float m_row = reduce_row(m, -INF, [](float a, float b) { return fmaxf(a, b); });
    const float m_safe = m_row == -INF ? 0.f : m_row;
    const float l_thread = l * exp2f((m - m_safe) * LOG2E);
    const float l_row = reduce_row(l_thread, 0.f, [](float a, float b) { return a + b; });
    const float inverse = l_row == 0.f ? 0.f : 1.f / l_row;  // every key masked: P is 0
    for (int col = first; col < end; col += ROW_THREADS * CHUNK) {
        const int n = min(CHUNK, end - col), lo = WINDOW ? max(0, begin - col) : 0;
        Chunk chunk;  // a thread reads back only what it wrote itself: no barrier is needed
        if (!ROW_IN_SMEM) chunk = load_chunk<ROWS_ALIGNED>(s + col, n, TENSOR_S, traffic, lo);
        float values[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            const float value = ROW_IN_SMEM ? row_smem[col + e] : element(chunk, e);
            values[e] = exp2f((value - m_safe) * LOG2E) * inverse;
        }
        store_chunk<ROWS_ALIGNED>(p + col, values, n, TENSOR_P, traffic, lo);
    }
    if (thread == 0) {
        lse[seq.stats_row0 + row] = l_row == 0.f ? -INF : m_row + logf(l_row);
        traffic.write(TENSOR_LSE, 4);
    }
    TRAFFIC_FLUSH(traffic);
}

// out[rows, :] = P V for one tile of rows. The 1 keeps ptxas from spilling to fit a fourth block.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
standard_tiled_output(const io_t* p, const io_t* v, Strides v_strides, io_t* out,
                      Strides out_strides, int nheads, int kv_group, int seqlen_q, int seqlen_k,
                      Band band EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* v_smem = reinterpret_cast<Chunk*>(smem);               // [BLOCK_N, HEAD_DIM]
    float* p_smem = reinterpret_cast<float*>(v_smem + KV_CHUNKS); // [BLOCK_M, BLOCK_N]

    const int q_tiles = (seqlen_q + BLOCK_M - 1) / BLOCK_M;
    const int bh = blockIdx.x / q_tiles;
    const int q0 = (q_tiles - 1 - blockIdx.x % q_tiles) * BLOCK_M;  // longest first, as in 04
    const i64 batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    v += seq.batch * v_strides.batch + (bh % nheads / kv_group) * v_strides.head +
         seq.k_row0 * v_strides.row;
    out += seq.batch * out_strides.batch + head * out_strides.head +
           (seq.q_row0 + q0) * out_strides.row;

    Traffic traffic;
    OTile o;
    o.clear();
    const int key_end = range.end_of(q0 + q_rows - 1);
    for (int k0 = range.begin_of(q0) / BLOCK_N * BLOCK_N; k0 < key_end; k0 += BLOCK_N) {
        const int keys = min(BLOCK_N, key_end - k0);
        const auto dropout = [&](int row, int col) {
            return extras.keep_factor(row, col, traffic);
        };
        load_scores(p_smem, p, seqlen_q, seqlen_k, bh, range, q0, q_rows, k0, keys, TENSOR_P,
                    dropout, traffic);
        load_tile<BLOCK_N, ALIGNED>(v_smem, v + k0 * v_strides.row, v_strides.row, keys, TENSOR_V,
                                    traffic);
        __syncthreads();  // P and V are in shared memory
        o.add_product(p_smem, v_smem, min(BLOCK_N_PAD, round_up(keys, 4)));
        __syncthreads();  // everyone is done with P and V before the next tile overwrites them
    }
    o.store<ALIGNED>(out, out_strides.row, q_rows, TENSOR_OUT, traffic);
    TRAFFIC_FLUSH(traffic);
}

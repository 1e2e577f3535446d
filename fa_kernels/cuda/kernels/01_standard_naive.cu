// Standard attention as a first CUDA program writes it: a thread per element, nothing shared.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 0, line by line: S = QK^T, P = softmax(S),
//   O = PV through HBM. Differs from it in skipping the elements that causal and window remove.
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. Workspace s, p in the io dtype,
//   (batch * nheads, seqlen_q, seqlen_k) contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log. io dtype fp16, bf16 or fp32 (io.cuh). Window, mask, bias, dropout and packed sequences
//   (S and P then have room for the longest): score.cuh. P is stored after dropout.
// Launch: THREADS per block, no dynamic shared memory; a thread per element, a warp per row:
//   standard_naive_scores    batch * nheads * seqlen_q * ceil(seqlen_k / THREADS) blocks
//   standard_naive_softmax   ceil(batch * nheads * seqlen_q / (THREADS / 32)) blocks
//   standard_naive_output    ceil(batch * nheads * seqlen_q * HEAD_DIM / THREADS) blocks
// SRAM: none.
// HBM, elements per (batch, head), no mask, N = seqlen_q, K = seqlen_k: each element of S reads a
//   row of Q and one of K, 2 N K d; S is written once and read three times, 4 N K; P is written
//   once and read d times, N K (d + 1); V N K d; O N d; lse N fp32. Masked elements never move.
//   These are the loads it executes; L1 and L2 answer most of them.
// Numerics: as 02, but sums run in the order of the keys, one term at a time, and NaN or inf in a V
//   row reaches only the rows that attend it: there are no tiles.
// Architectures: sm_75 and later.
// Changed from nothing: this is where the ladder starts.
// Limits and verdict: every product waits for two loads, and the 32 threads of a warp walk 32
//   different rows of K at once, HEAD_DIM elements apart, so one load touches 32 cache lines: it is
//   bound by the L1 cache. Kept as the line that the others are measured from.

#include "io.cuh"
#include "score.cuh"

// s[row, col] = scale q[row] . k[col], one thread each; threads of a block share the row.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_scores(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, io_t* s,
                      int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band,
                      float scale EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    // The grid has a block per row at least, so a row number fits 32 bits, in which the divisions
    // are cheap beside the HEAD_DIM multiply-adds of a thread.
    const unsigned col_blocks = ceil_div(seqlen_k, THREADS);
    const unsigned row_of_all = blockIdx.x / col_blocks;
    const int col = blockIdx.x % col_blocks * THREADS + threadIdx.x;
    const unsigned bh = row_of_all / seqlen_q;
    const i64 row = row_of_all % seqlen_q, batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);

    Traffic traffic;
    // Of packed sequences S has room for the longest: rows past the end of a shorter one are idle.
    if (row < seq.seqlen_q && col >= range.begin_of(row) && col < range.end_of(row)) {
        const Extras extras(batch, head EXTRAS_ARGS);
        q += seq.batch * q_strides.batch + head * q_strides.head +
             (seq.q_row0 + row) * q_strides.row;
        k += seq.batch * k_strides.batch + (bh % nheads / kv_group) * k_strides.head +
             (seq.k_row0 + col) * k_strides.row;
        float sum = 0.f;
        for (int c = 0; c < HEAD_DIM; ++c) sum += to_float(q[c]) * to_float(k[c]);
        const float score = extras.score(row, col, scale * sum, traffic);
        s[i64(row_of_all) * seqlen_k + col] = from_float(Extras::storable(score));
        traffic.read(TENSOR_Q, HEAD_DIM * sizeof(io_t));
        traffic.read(TENSOR_K, HEAD_DIM * sizeof(io_t));
        traffic.write(TENSOR_S, sizeof(io_t));
    }
    TRAFFIC_FLUSH(traffic);
}

// p[row] = softmax(s[row]) and lse[row]: three passes over the row, one for each formula.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_softmax(const io_t* s, io_t* p, float* lse, int nheads, int seqlen_q, int seqlen_k,
                       Band band, i64 rows EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    const int lane = threadIdx.x % WARP;
    const i64 row_of_all = i64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (row_of_all >= rows) return;  // whole warps leave: the shuffles below are complete
    const i64 bh = row_of_all / seqlen_q, row = row_of_all % seqlen_q;
    const i64 batch = bh / nheads, head = bh % nheads;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (row >= seq.seqlen_q) return;
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int begin = range.begin_of(row) + lane, end = range.end_of(row);
    s += row_of_all * seqlen_k;
    p += row_of_all * seqlen_k;

    Traffic traffic;
    float m = -INF, l = 0.f;
    for (int col = begin; col < end; col += WARP) m = fmaxf(m, to_float(s[col]));
    m = reduce_lanes(m, WARP, [](float a, float b) { return fmaxf(a, b); });
    const float m_safe = m == -INF ? 0.f : m;  // -inf - -inf would be NaN
    for (int col = begin; col < end; col += WARP) l += exp2f((to_float(s[col]) - m_safe) * LOG2E);
    l = reduce_lanes(l, WARP, [](float a, float b) { return a + b; });
    const float l_safe = l == 0.f ? 1.f : l;  // every key masked: P is 0
    for (int col = begin; col < end; col += WARP) {
        const float p_col = exp2f((to_float(s[col]) - m_safe) * LOG2E) / l_safe;
        p[col] = from_float(p_col * extras.keep_factor(row, col, traffic));
        traffic.read(TENSOR_S, 3 * sizeof(io_t));
        traffic.write(TENSOR_P, sizeof(io_t));
    }
    if (lane == 0) {
        lse[seq.stats_row0 + row] = l == 0.f ? -INF : m + logf(l);
        traffic.write(TENSOR_LSE, 4);
    }
    TRAFFIC_FLUSH(traffic);
}

// out[row, col] = p[row] . v[:, col], one thread each; neighbouring threads read one row of V.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_output(const io_t* p, const io_t* v, Strides v_strides, io_t* out,
                      Strides out_strides, int nheads, int kv_group, int seqlen_q, int seqlen_k,
                      Band band, i64 elements PACKED_PARAMS TRAFFIC_PARAM) {
    const i64 element = i64(blockIdx.x) * THREADS + threadIdx.x;
    Traffic traffic;
    if (element < elements) {
        const unsigned row_of_all = static_cast<unsigned>(element / HEAD_DIM);
        const int col = static_cast<int>(element % HEAD_DIM);
        const unsigned bh = row_of_all / seqlen_q;
        const i64 row = row_of_all % seqlen_q, batch = bh / nheads, head = bh % nheads;
        const Sequence seq = SEQUENCE(bh, batch, head);
        if (row < seq.seqlen_q) {
            const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
            const int begin = range.begin_of(row), end = range.end_of(row);
            p += i64(row_of_all) * seqlen_k;
            v += seq.batch * v_strides.batch + (bh % nheads / kv_group) * v_strides.head +
                 seq.k_row0 * v_strides.row + col;
            float sum = 0.f;
            for (int key = begin; key < end; ++key)
                sum += to_float(p[key]) * to_float(v[key * v_strides.row]);
            out += seq.batch * out_strides.batch + head * out_strides.head +
                   (seq.q_row0 + row) * out_strides.row;
            out[col] = from_float(sum);
            const int keys = max(0, end - begin);
            traffic.read(TENSOR_P, keys * static_cast<int>(sizeof(io_t)));
            traffic.read(TENSOR_V, keys * static_cast<int>(sizeof(io_t)));
            traffic.write(TENSOR_OUT, sizeof(io_t));
        }
    }
    TRAFFIC_FLUSH(traffic);
}

// Standard attention as a first CUDA program writes it: a thread per element, nothing shared.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 0, line by line: S = QK^T, P = softmax(S),
//   O = PV through HBM. Differs from it in skipping the elements that a causal mask removes.
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. Workspace s, p in the io dtype,
//   (batch * nheads, seqlen_q, seqlen_k) contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log. io dtype fp16, bf16 or fp32 (io.cuh).
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

// s[row, col] = scale q[row] . k[col], one thread each; threads of a block share the row.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_scores(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, io_t* s,
                      int nheads, int seqlen_q, int seqlen_k, i64 causal_offset,
                      float scale TRAFFIC_PARAM) {
    // The grid has a block per row at least, so a row number fits 32 bits, in which the divisions
    // are cheap beside the HEAD_DIM multiply-adds of a thread.
    const unsigned col_blocks = ceil_div(seqlen_k, THREADS);
    const unsigned row_of_all = blockIdx.x / col_blocks;
    const int col = blockIdx.x % col_blocks * THREADS + threadIdx.x;
    const unsigned bh = row_of_all / seqlen_q;
    const i64 row = row_of_all % seqlen_q, batch = bh / nheads, head = bh % nheads;

    Traffic traffic;
    if (col < key_end_of(row, causal_offset, seqlen_k)) {
        q += batch * q_strides.batch + head * q_strides.head + row * q_strides.row;
        k += batch * k_strides.batch + head * k_strides.head + col * k_strides.row;
        float sum = 0.f;
        for (int c = 0; c < HEAD_DIM; ++c) sum += to_float(q[c]) * to_float(k[c]);
        s[i64(row_of_all) * seqlen_k + col] = from_float(scale * sum);
        traffic.read(TENSOR_Q, HEAD_DIM * sizeof(io_t));
        traffic.read(TENSOR_K, HEAD_DIM * sizeof(io_t));
        traffic.write(TENSOR_S, sizeof(io_t));
    }
    TRAFFIC_FLUSH(traffic);
}

// p[row] = softmax(s[row]) and lse[row]: three passes over the row, one for each formula.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_softmax(const io_t* s, io_t* p, float* lse, int seqlen_q, int seqlen_k,
                       i64 causal_offset, i64 rows TRAFFIC_PARAM) {
    const int lane = threadIdx.x % WARP;
    const i64 row = i64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;  // whole warps leave: the shuffles below are complete
    const int end = key_end_of(row % seqlen_q, causal_offset, seqlen_k);
    s += row * seqlen_k;
    p += row * seqlen_k;

    Traffic traffic;
    float m = -INF, l = 0.f;
    for (int col = lane; col < end; col += WARP) m = fmaxf(m, to_float(s[col]));
    m = reduce_lanes(m, WARP, [](float a, float b) { return fmaxf(a, b); });
    const float m_safe = m == -INF ? 0.f : m;  // -inf - -inf would be NaN
    for (int col = lane; col < end; col += WARP) l += exp2f((to_float(s[col]) - m_safe) * LOG2E);
    l = reduce_lanes(l, WARP, [](float a, float b) { return a + b; });
    for (int col = lane; col < end; col += WARP) {
        p[col] = from_float(exp2f((to_float(s[col]) - m_safe) * LOG2E) / l);
        traffic.read(TENSOR_S, 3 * sizeof(io_t));
        traffic.write(TENSOR_P, sizeof(io_t));
    }
    if (lane == 0) {
        lse[row] = end == 0 ? -INF : m + logf(l);
        traffic.write(TENSOR_LSE, 4);
    }
    TRAFFIC_FLUSH(traffic);
}

// out[row, col] = p[row] . v[:, col], one thread each; neighbouring threads read one row of V.
extern "C" __global__ void __launch_bounds__(THREADS)
standard_naive_output(const io_t* p, const io_t* v, Strides v_strides, io_t* out,
                      Strides out_strides, int nheads, int seqlen_q, int seqlen_k,
                      i64 causal_offset, i64 elements TRAFFIC_PARAM) {
    const i64 element = i64(blockIdx.x) * THREADS + threadIdx.x;
    Traffic traffic;
    if (element < elements) {
        const unsigned row_of_all = static_cast<unsigned>(element / HEAD_DIM);
        const int col = static_cast<int>(element % HEAD_DIM);
        const unsigned bh = row_of_all / seqlen_q;
        const i64 row = row_of_all % seqlen_q, batch = bh / nheads, head = bh % nheads;
        const int end = key_end_of(row, causal_offset, seqlen_k);
        p += i64(row_of_all) * seqlen_k;
        v += batch * v_strides.batch + head * v_strides.head + col;
        float sum = 0.f;
        for (int key = 0; key < end; ++key)
            sum += to_float(p[key]) * to_float(v[key * v_strides.row]);
        out += batch * out_strides.batch + head * out_strides.head + row * out_strides.row;
        out[col] = from_float(sum);
        traffic.read(TENSOR_P, end * static_cast<int>(sizeof(io_t)));
        traffic.read(TENSOR_V, end * static_cast<int>(sizeof(io_t)));
        traffic.write(TENSOR_OUT, sizeof(io_t));
    }
    TRAFFIC_FLUSH(traffic);
}

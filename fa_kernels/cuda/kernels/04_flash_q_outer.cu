// FlashAttention forward on CUDA cores, Q blocks in the outer loop: S and P never leave the chip.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1: one block per Q tile, a loop over K/V
//   tiles, O normalised once at the end. Differs from it in using CUDA cores, not tensor cores,
//   and in keeping S in shared memory (the paper's warps keep it in registers).
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log, contiguous. io dtype fp16 or fp32, IO_BITS = 16 | 32.
// Launch: grid = batch * nheads * ceil(seqlen_q / BLOCK_M), neighbours share K and V; THREADS per
//   block; dynamic shared memory SMEM_BYTES.
// SRAM, bytes: itemsize (2 BLOCK_N + BLOCK_M) d + 4 BLOCK_M BLOCK_N + 12 BLOCK_M; the O tile,
//   4 BLOCK_M d bytes, is in registers.
// HBM, elements per (batch, head), no mask: 2 seqlen_q d + 2 seqlen_k d ceil(seqlen_q / BLOCK_M),
//   and seqlen_q fp32 for lse. A causal Q tile reads only the K/V rows that its last row attends.
// Numerics: S, P, O, m, l in fp32; exp2 with log2(e) folded into the scale. Subnormal fp32 values
//   are flushed to zero. A row with no kept key gives out 0 and lse -inf. NaN in one query row
//   stays in that row; NaN or inf in a V row reaches every row of Q that shares a tile with it,
//   masked or not (0 * NaN).
// Architectures: sm_75 and later.
// Changed from 02: S and P stay in shared memory (one launch instead of three), which needs the
//   online softmax; the matmul loops are the same code (tile.cuh).
// Limits and verdict: bound by fp32 arithmetic, not by HBM, so larger tiles cut traffic but leave
//   one block per SM with nothing to hide its latency. Tensor cores are what it lacks.

#include "io.cuh"
#include "tile.cuh"

constexpr int Q_CHUNKS = BLOCK_M * HEAD_CHUNKS;
constexpr int KV_CHUNKS = BLOCK_N * HEAD_CHUNKS;
static_assert(SMEM_BYTES == 16 * (Q_CHUNKS + 2 * KV_CHUNKS) + 4 * BLOCK_M * BLOCK_N_PAD +
                                12 * round_up(BLOCK_M, 4),
              "SMEM_BYTES does not match the layout below: fix tiling.flash_smem or this kernel");

extern "C" __global__ void __launch_bounds__(THREADS)
flash_q_outer(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, const io_t* v,
              Strides v_strides, io_t* out, Strides out_strides, float* lse, int nheads,
              int seqlen_q, int seqlen_k, i64 causal_offset, float scale_log2 TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem[];
    Chunk* q_smem = reinterpret_cast<Chunk*>(smem);               // [BLOCK_M, HEAD_DIM]
    Chunk* k_smem = q_smem + Q_CHUNKS;                            // [BLOCK_N, HEAD_DIM]
    Chunk* v_smem = k_smem + KV_CHUNKS;                           // [BLOCK_N, HEAD_DIM]
    float* s_smem = reinterpret_cast<float*>(v_smem + KV_CHUNKS); // [BLOCK_M, BLOCK_N], S then P
    float* m_smem = s_smem + BLOCK_M * BLOCK_N_PAD;               // [BLOCK_M], log2 units
    float* l_smem = m_smem + round_up(BLOCK_M, 4);                // [BLOCK_M]
    float* alpha_smem = l_smem + round_up(BLOCK_M, 4);            // [BLOCK_M]

    const int q_tiles = (seqlen_q + BLOCK_M - 1) / BLOCK_M;
    const int bh = blockIdx.x / q_tiles;
    // Last tile first: under a causal mask it has the most work, and late long blocks idle the GPU.
    const int q0 = (q_tiles - 1 - blockIdx.x % q_tiles) * BLOCK_M;
    const i64 batch = bh / nheads, head = bh % nheads;
    const int q_rows = min(BLOCK_M, seqlen_q - q0);
    q += batch * q_strides.batch + head * q_strides.head + q0 * q_strides.row;
    k += batch * k_strides.batch + head * k_strides.head;
    v += batch * v_strides.batch + head * v_strides.head;
    out += batch * out_strides.batch + head * out_strides.head + q0 * out_strides.row;
    lse += i64(bh) * seqlen_q + q0;

    Traffic traffic;
    load_tile<BLOCK_M, ALIGNED>(q_smem, q, q_strides.row, q_rows, TENSOR_Q, traffic);
    for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
        m_smem[row] = -INF;
        l_smem[row] = 0.f;
    }
    Accumulator o;
    o.clear();

    // Row r attends keys < q0 + r + causal_offset + 1; the tile's last row attends the most.
    const i64 first_end = q0 + causal_offset + 1;
    const int key_end = int(max(i64(0), min(i64(seqlen_k), first_end + q_rows - 1)));
    for (int k0 = 0; k0 < key_end; k0 += BLOCK_N) {
        const int keys = min(BLOCK_N, key_end - k0);
        load_tile<BLOCK_N, ALIGNED>(k_smem, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K,
                                    traffic);
        load_tile<BLOCK_N, ALIGNED>(v_smem, v + k0 * v_strides.row, v_strides.row, keys, TENSOR_V,
                                    traffic);
        __syncthreads();  // Q (first pass), K and V are in shared memory
        scores_tile(s_smem, q_smem, k_smem, scale_log2, first_end - k0, keys);
        __syncthreads();  // all of S is written before any row of it is reduced
        softmax_tile(s_smem, m_smem, l_smem, alpha_smem);
        __syncthreads();  // P and alpha are complete before other threads read them
        o.scale_rows(alpha_smem);
        o.add_product(s_smem, v_smem, min(BLOCK_N_PAD, round_up(keys, 4)));
        __syncthreads();  // everyone is done with K, V and P before the next tile overwrites them
    }
    __syncthreads();  // with no K/V tile at all, this is what makes the initial m and l visible

    for (int row = threadIdx.x; row < BLOCK_M; row += THREADS) {
        const float l = l_smem[row];
        alpha_smem[row] = l == 0.f ? 0.f : 1.f / l;  // out = 0 for a row with no kept key
        if (row < q_rows) {
            lse[row] = l == 0.f ? -INF : m_smem[row] * LN2 + logf(l);
            traffic.write(TENSOR_LSE, 4);
        }
    }
    __syncthreads();  // 1 / l of every row is there
    o.scale_rows(alpha_smem);
    o.store<ALIGNED>(out, out_strides.row, q_rows, traffic);
    TRAFFIC_FLUSH(traffic);
}

// Gradients by recomputation as first published: K/V tiles outside, dq carried through HBM.
//
// Source: FlashAttention (arXiv 2205.14135), Algorithm 4, and its block-sparse form; one block per
//   (batch, head of k), since two K/V tiles would race on dq. Differs from the paper in keeping lse
//   for m and l, in skipping what causal, window and block mask remove, in not reading what it
//   knows (the zeros of a first visit), in storing a Q tile's last visit straight to dq, in keeping
//   the tiles of dk, dv and dq in registers, and in heads of q that share k and v: one block goes
//   over all of them.
// Tensors: q, d_out, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k,
//   HEAD_DIM); any batch/head/row strides, last axis contiguous; lse as the forward gives it. dk,
//   dv like k, v; dq like q, contiguous. Workspace, fp32: dq_sum like q (dq itself for fp32 io);
//   with a bias row_m and row_scale like lse. With -DBLOCK_SPARSE a block mask and the lists of
//   tiles (block_mask.cuh): by K/V tile, for _statistics by Q tile.
// Launch: THREADS per block, dynamic shared memory SMEM_BYTES; grid of
//   flash_kv_outer_backward_statistics  a block per Q tile of every head of q; only with a bias
//   flash_kv_outer_backward_keys        batch * nheads_kv
// SRAM, bytes: itemsize (2 BLOCK_M + 2 BLOCK_N) d + 8 BLOCK_M BLOCK_N + 12 BLOCK_M; the dk and dv
//   tiles, 8 BLOCK_N d bytes, and the dq tile, 4 BLOCK_M d bytes, are in registers. A block mask
//   that cuts tiles adds one byte per block that a tile touches.
// HBM, elements per (batch, head of q), no mask, T = ceil(seqlen_k / BLOCK_N): Q, O and dO T
//   seqlen_q d each; dq, fp32, 2 (T - 1) seqlen_q d, and seqlen_q d in the io dtype; lse T seqlen_q
//   fp32. Per (batch, head of k): K, V, dk and dv once.
// Numerics: everything in fp32; P = exp(S - lse), with a bias and |lse| > 1024 (finfo.min rows)
//   from m and l computed again, since fp32 cannot hold log(l) beside such an lse. Subnormals are
//   flushed to zero. dq, dk and dv have the same bits at every run. A row with no kept key gives dq
//   0 and adds 0 to dk and dv. NaN or inf in a row of q, dO, k or v spreads within its tiles
//   (0 * NaN), also to the gradients of what a mask drops there.
// Architectures: sm_75 and later.
// Changed from 02: P is rebuilt from lse instead of being kept or read, and dP and dS stay in
//   shared memory: one launch instead of five, and nothing of size N x N in HBM.
// Limits and verdict: it reads K and V once, and pays with T reads of Q, O, dO and dq. One block
//   per head of k leaves most of the GPU idle unless there are many: kept as the paper's algorithm.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "backward.cuh"
#include "key_tile.cuh"
#include "recompute.cuh"

constexpr bool SUM_VECTOR = HEAD_DIM % 4 == 0;  // rows of dq_sum are HEAD_DIM floats

#if BIAS
// row_m and row_scale from lse; from S once more where lse is too large to hold log(l).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_kv_outer_backward_statistics(const io_t* q, Strides q_strides, const io_t* k,
                                   Strides k_strides, const float* lse, float* row_m,
                                   float* row_scale, int nheads, int kv_group, int seqlen_q,
                                   int seqlen_k, Band band,
                                   float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS
                                       TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    Traffic traffic;
    row_statistics(BackwardSmem(smem_bytes), q, q_strides, k, k_strides, lse, row_m, row_scale,
                   nheads, kv_group, seqlen_q, seqlen_k, band, scale,
                   traffic BLOCK_MASK_ARGS EXTRAS_ARGS PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}
#endif

// dk, dv and dq of one head of k and all heads of q that share it.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_kv_outer_backward_keys(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                             const io_t* v, Strides v_strides, const io_t* d_out,
                             Strides d_out_strides, const io_t* out, Strides out_strides,
                             const float* row_m, const float* row_scale, float* dq_sum, io_t* dq,
                             io_t* dk, Strides dk_strides, io_t* dv, Strides dv_strides,
                             int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band,
                             float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS
                                 TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    const BackwardSmem smem(smem_bytes);
    const int nheads_kv = nheads / kv_group;
    const i64 batch = blockIdx.x / nheads_kv, kv_head = blockIdx.x % nheads_kv;
    const Sequence of_keys = SEQUENCE(batch * nheads, batch, i64(0));  // the same for all heads
    const i64 k_row0 = of_keys.k_row0;
    k += of_keys.batch * k_strides.batch + kv_head * k_strides.head + k_row0 * k_strides.row;
    v += of_keys.batch * v_strides.batch + kv_head * v_strides.head + k_row0 * v_strides.row;
    dk += of_keys.batch * dk_strides.batch + kv_head * dk_strides.head + k_row0 * dk_strides.row;
    dv += of_keys.batch * dv_strides.batch + kv_head * dv_strides.head + k_row0 * dv_strides.row;
    const KeyRange range(band, of_keys.seqlen_q, of_keys.seqlen_k);
    const int k_end = range.end_of(of_keys.seqlen_q - 1);
    const int q_tiles = ceil_div(of_keys.seqlen_q, BLOCK_M);
#if BLOCK_SPARSE
    __shared__ int entry_smem;
    const int lists = ceil_div(seqlen_k, BLOCK_N) + 1;
#endif

    Traffic traffic;
    for (int k_tile = 0; k_tile < ceil_div(of_keys.seqlen_k, BLOCK_N); ++k_tile) {
        const int k0 = k_tile * BLOCK_N;
        const int keys = min(BLOCK_N, k_end - k0);
        KeyTile dk_tile, dv_tile;
        dk_tile.clear();
        dv_tile.clear();
        bool loaded = false;  // nobody attends some K/V tiles: they are not loaded at all
        for (int member = 0; member < kv_group; ++member) {
            const i64 head = kv_head * kv_group + member, bh = batch * nheads + head;
            const Sequence seq = SEQUENCE(bh, batch, head);
            const Extras extras(batch, head EXTRAS_ARGS);
            const io_t* q_head = q + seq.batch * q_strides.batch + head * q_strides.head;
            const io_t* d_out_head =
                d_out + seq.batch * d_out_strides.batch + head * d_out_strides.head;
            const io_t* out_head = out + seq.batch * out_strides.batch + head * out_strides.head;
#if BLOCK_SPARSE
            const BlockMask block_mask = BLOCK_MASK(batch, head, lists);
            TileWalk walk(&entry_smem, block_mask, k_tile, traffic);
#else
            const RowTiles rows_of(range, seq.seqlen_q, k0, keys);
            TileWalk walk(rows_of.first, rows_of.stop);
#endif
            while (walk.more()) {
                const int q0 = walk.tile() * BLOCK_M;
                const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
                const i64 row = seq.q_row0 + q0, stats_row = seq.stats_row0 + q0;
                const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
#if BLOCK_SPARSE
                const bool first = walk.flags() & FLAG_FIRST, last = walk.flags() & FLAG_LAST;
#else
                const bool first = k_tile == range.begin_of(q0) / BLOCK_N;
                const bool last = k0 + BLOCK_N >= range.end_of(q0 + q_rows - 1);
#endif
                if (!loaded) {
                    load_tile<BLOCK_N, ALIGNED>(smem.k, k + k0 * k_strides.row, k_strides.row, keys,
                                                TENSOR_K, traffic);
                    load_tile<BLOCK_N, ALIGNED>(smem.v, v + k0 * v_strides.row, v_strides.row, keys,
                                                TENSOR_V, traffic);
                    loaded = true;
                }
                load_tile<BLOCK_M, ALIGNED>(smem.q, q_head + row * q_strides.row, q_strides.row,
                                            q_rows, TENSOR_Q, traffic);
                load_tile<BLOCK_M, ALIGNED>(smem.d_out, d_out_head + row * d_out_strides.row,
                                            d_out_strides.row, q_rows, TENSOR_D_OUT, traffic);
                load_statistics(smem, row_m + stats_row, row_scale + stats_row, q_rows, traffic);
                __syncthreads();  // all tiles, statistics and the mask's cells are there
                walk.advance(traffic);
                const auto d_out_chunk = [&](int r, int chunk, int) {
                    return smem.d_out[chunk_index(r, chunk)];
                };
                const auto store = [&](int r, float value) { smem.delta[r] = value; };
                delta_of_rows(d_out_chunk, out_head + row * out_strides.row, out_strides.row,
                              q_rows, store, traffic);
                p_and_ds_tile(smem, scale, mask, traffic);
                dv_tile.add_transposed_product(smem.p, smem.d_out, q_rows);
                dk_tile.add_transposed_product(smem.ds, smem.q, q_rows);

                // A thread reads back only what it wrote itself: no fence is needed.
                float* const dq_rows = dq_sum + stats_row * HEAD_DIM;
                OTile dq_tile;
                if (first)
                    dq_tile.clear();
                else
                    dq_tile.load<SUM_VECTOR>(dq_rows, HEAD_DIM, q_rows, TENSOR_DQ, traffic);
                dq_tile.add_product(smem.ds, smem.k, min(BLOCK_N_PAD, round_up(keys, 4)));
                if (last)
                    dq_tile.store<ALIGNED>(dq + stats_row * HEAD_DIM, HEAD_DIM, q_rows, TENSOR_DQ,
                                           traffic);
                else
                    dq_tile.store<SUM_VECTOR>(dq_rows, HEAD_DIM, q_rows, TENSOR_DQ, traffic);
                __syncthreads();  // everyone is done with all tiles before they are overwritten
            }
        }
        const int owned = min(BLOCK_N, of_keys.seqlen_k - k0);  // keys nobody attends get 0
        dk_tile.store<ALIGNED>(dk + k0 * dk_strides.row, dk_strides.row, owned, TENSOR_DK, traffic);
        dv_tile.store<ALIGNED>(dv + k0 * dv_strides.row, dv_strides.row, owned, TENSOR_DV, traffic);
    }

    // Q tiles that attend nothing were never visited.
    for (int member = 0; member < kv_group; ++member) {
        const i64 head = kv_head * kv_group + member, bh = batch * nheads + head;
        const Sequence seq = SEQUENCE(bh, batch, head);
#if BLOCK_SPARSE
        const BlockMask block_mask = BLOCK_MASK(batch, head, lists);
        TileWalk unattended(&entry_smem, block_mask, lists - 1, traffic);
#else
        TileWalk unattended(0, q_tiles);
#endif
        while (unattended.more()) {
            const int q0 = unattended.tile() * BLOCK_M;
            const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
            if (BLOCK_SPARSE || range.begin_of(q0) >= range.end_of(q0 + q_rows - 1)) {
                OTile zero;
                zero.clear();
                zero.store<ALIGNED>(dq + (seq.stats_row0 + q0) * HEAD_DIM, HEAD_DIM, q_rows,
                                    TENSOR_DQ, traffic);
            }
#if BLOCK_SPARSE
            __syncthreads();  // all have read this entry of the list
            unattended.advance(traffic);
            __syncthreads();  // the next entry is there
#else
            unattended.advance(traffic);
#endif
        }
    }
    TRAFFIC_FLUSH(traffic);
}

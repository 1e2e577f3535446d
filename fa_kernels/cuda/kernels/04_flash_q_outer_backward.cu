// Gradients by recomputation on CUDA cores, a block per K/V tile: dq is added up by all of them.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 2: delta = rowsum(dO O) first, then blocks
//   that own a K/V tile and loop over Q tiles. Differs from it in using CUDA cores, not tensor
//   cores, in keeping P and dS in shared memory, and in adding dq atomically in fp32 (the paper's
//   loop over K/V tiles loads, updates and stores it; its blocks communicate by atomic adds as
//   well). -DDETERMINISTIC leaves dq out there; blocks that own a Q tile compute S and dP again for
//   it.
// Tensors: q, d_out, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k,
//   HEAD_DIM); any batch/head/row strides, last axis contiguous; lse as the forward gives it. dk,
//   dv like k, v; dq like q. Workspace, fp32, contiguous: delta like lse; dq_sum like q, all zero
//   (dq itself for fp32 io); with a bias row_m and row_scale like lse. With -DBLOCK_SPARSE a block
//   mask and the lists of tiles (block_mask.cuh): by K/V tile for _keys, by Q tile for the others.
// Launch: THREADS per block; grid and dynamic shared memory of
//   flash_q_outer_backward_delta       a block per Q tile of every head of q           none
//   flash_q_outer_backward_statistics  the same; only with a bias                      SMEM_BYTES
//   flash_q_outer_backward_keys        a block per K/V tile of every head of k         SMEM_BYTES
//   flash_q_outer_backward_convert     a block per Q tile; 16-bit io alone             none
//   flash_q_outer_backward_rows        a block per Q tile; -DDETERMINISTIC, for convert SMEM_BYTES
// SRAM, bytes: itemsize (2 BLOCK_M + 2 BLOCK_N) d + 8 BLOCK_M BLOCK_N + 12 BLOCK_M; the dk and dv
//   tiles, 8 BLOCK_N d bytes, and the dq tile, 4 BLOCK_M d bytes, are in registers. A block mask
//   that cuts tiles adds one byte per block that a tile touches.
// HBM, elements per (batch, head of q), no mask, T = ceil(seqlen_k / BLOCK_N): dO and O once for
//   delta; Q and dO T seqlen_q d each; dq, fp32, 2 T seqlen_q d, then seqlen_q d and once more in
//   the io dtype; lse and delta T seqlen_q fp32 each; delta written once. Per (batch, head of k):
//   K, V, dk and dv once. -DDETERMINISTIC: instead of the dq terms Q, dO, lse and delta once, dq
//   once, and K and V ceil(seqlen_q / BLOCK_M) times for every head of q.
// Numerics: everything in fp32; P = exp(S - lse), with a bias and |lse| > 1024 (finfo.min rows)
//   from m and l computed again, since fp32 cannot hold log(l) beside such an lse. Subnormals are
//   flushed to zero. dk and dv have the same bits at every run, dq only with -DDETERMINISTIC. A row
//   with no kept key gives dq 0 and adds 0 to dk and dv. NaN or inf in a row of q, dO, k or v
//   spreads within its tiles (0 * NaN), also to the gradients of what a mask drops there.
// Architectures: sm_75 and later.
// Changed from 03: K/V tiles are independent, so each gets a block of its own, and dq is added to
//   by all of them at once instead of being carried by one; delta is computed once and not at every
//   visit.
// Limits and verdict: bound by fp32 arithmetic: five products where the forward has two. The atomic
//   additions are spread over the whole of dq and rarely meet. Tensor cores are what it lacks.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "tile.cuh"
#include "backward.cuh"
#include "key_tile.cuh"
#include "recompute.cuh"

// delta[row] = rowsum(d_out out), and nothing of it is needed on chip.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_q_outer_backward_delta(const io_t* d_out, Strides d_out_strides, const io_t* out,
                             Strides out_strides, float* delta, int nheads, int seqlen_q,
                             int seqlen_k PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    delta_of_tile(d_out, d_out_strides, out, out_strides, delta, nheads, seqlen_q, seqlen_k,
                  traffic PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}

#if BIAS
// row_m and row_scale from lse; from S once more where lse is too large to hold log(l).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_q_outer_backward_statistics(const io_t* q, Strides q_strides, const io_t* k,
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

// dk and dv of one K/V tile, over the Q tiles of every head of q that shares it; adds to dq_sum.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_q_outer_backward_keys(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                            const io_t* v, Strides v_strides, const io_t* d_out,
                            Strides d_out_strides, const float* row_m, const float* row_scale,
                            const float* delta, float* dq_sum, io_t* dk, Strides dk_strides,
                            io_t* dv, Strides dv_strides, int nheads, int kv_group, int seqlen_q,
                            int seqlen_k, Band band,
                            float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS
                                TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    const BackwardSmem smem(smem_bytes);
    const int k_tiles = ceil_div(seqlen_k, BLOCK_N);  // of the longest sequence, if packed
    // The first tile first: under a causal mask it has the most work.
    const int k_tile = blockIdx.x % k_tiles, k0 = k_tile * BLOCK_N;
    const int nheads_kv = nheads / kv_group, batch_kv = blockIdx.x / k_tiles;
    const i64 batch = batch_kv / nheads_kv, kv_head = batch_kv % nheads_kv;

    Traffic traffic;
    KeyTile dk_tile, dv_tile;
    dk_tile.clear();
    dv_tile.clear();
    bool loaded = false;  // nobody attends some K/V tiles: they are not loaded at all
    for (int member = 0; member < kv_group; ++member) {
        const i64 head = kv_head * kv_group + member, bh = batch * nheads + head;
        const Sequence seq = SEQUENCE(bh, batch, head);
        if (PACKED && k0 >= seq.seqlen_k) return;  // past the end of a shorter sequence
        const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
        const Extras extras(batch, head EXTRAS_ARGS);
        const io_t* q_head = q + seq.batch * q_strides.batch + head * q_strides.head;
        const io_t* d_out_head =
            d_out + seq.batch * d_out_strides.batch + head * d_out_strides.head;
        const int keys = min(BLOCK_N, range.end_of(seq.seqlen_q - 1) - k0);
#if BLOCK_SPARSE
        __shared__ int entry_smem;
        const BlockMask block_mask = BLOCK_MASK(batch, head, k_tiles + 1);
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
            if (!loaded) {
                const i64 key = seq.k_row0 + k0;
                const i64 k_at = kv_head * k_strides.head + key * k_strides.row;
                const i64 v_at = kv_head * v_strides.head + key * v_strides.row;
                load_tile<BLOCK_N, ALIGNED>(smem.k, k + seq.batch * k_strides.batch + k_at,
                                            k_strides.row, keys, TENSOR_K, traffic);
                load_tile<BLOCK_N, ALIGNED>(smem.v, v + seq.batch * v_strides.batch + v_at,
                                            v_strides.row, keys, TENSOR_V, traffic);
                loaded = true;
            }
            load_tile<BLOCK_M, ALIGNED>(smem.q, q_head + row * q_strides.row, q_strides.row, q_rows,
                                        TENSOR_Q, traffic);
            load_tile<BLOCK_M, ALIGNED>(smem.d_out, d_out_head + row * d_out_strides.row,
                                        d_out_strides.row, q_rows, TENSOR_D_OUT, traffic);
            load_statistics(smem, row_m + stats_row, row_scale + stats_row, q_rows, traffic);
            load_delta(smem, delta + stats_row, q_rows, traffic);
            __syncthreads();  // all tiles, statistics and the mask's cells are in shared memory
            walk.advance(traffic);
            p_and_ds_tile(smem, scale, mask, traffic);
            dv_tile.add_transposed_product(smem.p, smem.d_out, q_rows);
            dk_tile.add_transposed_product(smem.ds, smem.q, q_rows);
#if !DETERMINISTIC
            OTile dq_tile;
            dq_tile.clear();
            dq_tile.add_product(smem.ds, smem.k, min(BLOCK_N_PAD, round_up(keys, 4)));
            add_atomically(dq_tile, dq_sum + stats_row * HEAD_DIM, q_rows, TENSOR_DQ, traffic);
#endif
            __syncthreads();  // everyone is done with Q, dO, P and dS before they are overwritten
        }
    }
    const Sequence seq = SEQUENCE(batch * nheads, batch, i64(0));
    const int keys = min(BLOCK_N, seq.seqlen_k - k0);  // those nobody attends get 0
    const i64 key = seq.k_row0 + k0;
    dk += seq.batch * dk_strides.batch + kv_head * dk_strides.head + key * dk_strides.row;
    dv += seq.batch * dv_strides.batch + kv_head * dv_strides.head + key * dv_strides.row;
    dk_tile.store<ALIGNED>(dk, dk_strides.row, keys, TENSOR_DK, traffic);
    dv_tile.store<ALIGNED>(dv, dv_strides.row, keys, TENSOR_DV, traffic);
    TRAFFIC_FLUSH(traffic);
}

#if DETERMINISTIC
// dq of one Q tile, over its K/V tiles: what the forward does with O.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_q_outer_backward_rows(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                            const io_t* v, Strides v_strides, const io_t* d_out,
                            Strides d_out_strides, const float* row_m, const float* row_scale,
                            const float* delta, io_t* dq, Strides dq_strides, int nheads,
                            int kv_group, int seqlen_q, int seqlen_k, Band band,
                            float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS
                                TRAFFIC_PARAM) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    const BackwardSmem smem(smem_bytes);
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M), bh = blockIdx.x / q_tiles;
    const int q_tile = q_tiles - 1 - blockIdx.x % q_tiles, q0 = q_tile * BLOCK_M;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const i64 row = seq.q_row0 + q0, stats_row = seq.stats_row0 + q0;
    q += seq.batch * q_strides.batch + head * q_strides.head + row * q_strides.row;
    d_out += seq.batch * d_out_strides.batch + head * d_out_strides.head + row * d_out_strides.row;
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head + seq.k_row0 * v_strides.row;

    Traffic traffic;
    load_tile<BLOCK_M, ALIGNED>(smem.q, q, q_strides.row, q_rows, TENSOR_Q, traffic);
    load_tile<BLOCK_M, ALIGNED>(smem.d_out, d_out, d_out_strides.row, q_rows, TENSOR_D_OUT,
                                traffic);
    load_statistics(smem, row_m + stats_row, row_scale + stats_row, q_rows, traffic);
    load_delta(smem, delta + stats_row, q_rows, traffic);
    OTile dq_tile;
    dq_tile.clear();
    const int key_end = range.end_of(q0 + q_rows - 1);
#if BLOCK_SPARSE
    __shared__ int entry_smem;
    const BlockMask block_mask = BLOCK_MASK(batch, head, q_tiles);
    TileWalk walk(&entry_smem, block_mask, q_tile, traffic);
#else
    TileWalk walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
    while (walk.more()) {
        const int k0 = walk.tile() * BLOCK_N;
        const int keys = min(BLOCK_N, key_end - k0);
        const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
        load_tile<BLOCK_N, ALIGNED>(smem.k, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K,
                                    traffic);
        load_tile<BLOCK_N, ALIGNED>(smem.v, v + k0 * v_strides.row, v_strides.row, keys, TENSOR_V,
                                    traffic);
        __syncthreads();  // all tiles, statistics and the mask's cells are in shared memory
        walk.advance(traffic);
        p_and_ds_tile(smem, scale, mask, traffic);
        dq_tile.add_product(smem.ds, smem.k, min(BLOCK_N_PAD, round_up(keys, 4)));
        __syncthreads();  // everyone is done with K, V and dS before they are overwritten
    }
    dq += seq.batch * dq_strides.batch + head * dq_strides.head + row * dq_strides.row;
    dq_tile.store<ALIGNED>(dq, dq_strides.row, q_rows, TENSOR_DQ, traffic);
    TRAFFIC_FLUSH(traffic);
}
#elif IO_BITS == 16
// dq = dq_sum, rounded.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_q_outer_backward_convert(const float* dq_sum, io_t* dq, Strides dq_strides, int nheads,
                               int seqlen_q, int seqlen_k PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    round_tile(dq_sum, dq, dq_strides, nheads, seqlen_q, seqlen_k, traffic PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}
#endif

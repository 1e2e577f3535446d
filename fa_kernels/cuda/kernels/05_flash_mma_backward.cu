// Gradients by recomputation on tensor cores (mma.sync): what 04's backward does, at the speed of
// FlashAttention-2's.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 2 and section 3.3. Differs from it in that
//   S and dP are computed transposed, so that P and dS are operands where they were made (as in
//   FlashAttention-3), in having, with STAGES = 2, one barrier of all warps a visit (dS of a Q tile
//   waits in shared memory until the next visit multiplies it by K), and in the order of the Q
//   tiles: up to d = 128 each block begins at another and goes round, so that additions to dq
//   rarely meet.
//   -DDETERMINISTIC leaves dq out there; blocks that own a Q tile compute S and dP again for it.
// Tensors: q, d_out, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k,
//   HEAD_DIM); any batch/head/row strides, last axis contiguous; fp16 or bf16; lse as the forward
//   gives it, contiguous. dk, dv like k, v; dq like q. Workspace, fp32, contiguous: delta like
//   lse; dq_sum like q, all zero, from a multiple of 16 bytes on; with a bias row_m and row_scale
//   like lse (without one both are lse). With -DBLOCK_SPARSE a block mask and the lists of tiles
//   (block_mask.cuh): by K/V tile for _keys, by Q tile for the others. scale is softmax_scale times
//   log2(e), with a bias softmax_scale itself (score.cuh).
// Launch: THREADS per block; grid and dynamic shared memory of
//   flash_mma_backward_delta       a block per Q tile of every head of q           none
//   flash_mma_backward_statistics  the same; only with a bias                      SMEM_BYTES
//   flash_mma_backward_keys        a block per K/V tile of every head of k         SMEM_BYTES
//   flash_mma_backward_convert     a block per Q tile of every head of q           none
//   flash_mma_backward_rows        a block per Q tile; -DDETERMINISTIC, for convert SMEM_BYTES
// SRAM, bytes (SMEM_BYTES): 4 HEAD_DIM_PAD (BLOCK_N + STAGES BLOCK_M) for K, V, Q and dO; 4 BLOCK_M
//   BLOCK_N for two dS, with SIDES > 1 half as much again for P; 8 STAGES BLOCK_M for statistics,
//   with a bias 12. S, dP, dk, dv and the dq tile are in registers. A block mask that cuts tiles
//   adds two bytes per block that a tile touches.
// HBM: that of 04_flash_q_outer_backward with the same tiles.
// Numerics: products of 16-bit operands in fp32; P, dP and dS in fp32 and rounded to the io dtype
//   for the products that follow, dS before scale; sums in fp32. In fp16 dS overflows where dP
//   passes 65504, as in every backward on tensor cores: scale the loss down. P = exp(S - lse), with
//   a bias and |lse| > 1024 from m and l computed again. dk and dv have the same bits at every run,
//   dq only with -DDETERMINISTIC. A row with no kept key gives dq 0 and adds 0 to dk and dv. NaN or
//   inf in a row of q, dO, k or v spreads within its tiles.
// Architectures: sm_80 and later.
// Changed from 04: five products on tensor cores, operands copied ahead (STAGES = 2). dP needs no
//   shared memory, nor does P where a warp has its keys alone (SIDES = 1). With 8 warps or more
//   those of one scheduler take turns with dS K. From sm_90 on four additions to dq are one
//   instruction.
// Limits and verdict: bound by what mma.sync and shared memory can do together, with two warps a
//   scheduler, since dk and dv take half of all registers: a visit reads Q and dO twice for every
//   16 or 32 keys. Hopper's warpgroup instructions (wgmma) read them once for 64.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "backward.cuh"
#include "mma.cuh"
#include "mma_backward.cuh"
#include "mma_backward_rows.cuh"
#include "tile_queue.cuh"

// delta[row] = rowsum(d_out out), and nothing of it is needed on chip.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_mma_backward_delta(const io_t* d_out, Strides d_out_strides, const io_t* out,
                         Strides out_strides, float* delta, int nheads, int seqlen_q,
                         int seqlen_k PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    delta_of_tile(d_out, d_out_strides, out, out_strides, delta, nheads, seqlen_q,
                  seqlen_k, traffic PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}

#if BIAS
// row_m and row_scale from lse; from S once more where lse is too large to hold log(l).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_mma_backward_statistics(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                              const float* lse, float* row_m, float* row_scale, int nheads,
                              int kv_group, int seqlen_q, int seqlen_k, Band band,
                              float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS
                                  TRAFFIC_PARAM) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    BackwardSmem smem(smem_bytes);
    const RowPlace at;
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);  // of the longest sequence, if packed
    const int q_tile = blockIdx.x % q_tiles, q0 = q_tile * BLOCK_M, bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const i64 stats_row = seq.stats_row0 + q0;

    Traffic traffic;
    float* const lse_smem = smem.rows;
    float* const m_smem = reinterpret_cast<float*>(smem_bytes);  // K and V are done with by then
    float* const l_smem = m_smem + BLOCK_M;
    if (any_large(lse_smem, lse + stats_row, q_rows, traffic)) {
        const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
        const Extras extras(batch, head EXTRAS_ARGS);
        q += seq.batch * q_strides.batch + head * q_strides.head +
             (seq.q_row0 + q0) * q_strides.row;
        k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
        copy_tile<BLOCK_M>(smem.q, q, q_strides.row, q_rows, TENSOR_Q, traffic);
        RowSoftmax softmax;
        const int key_end = range.end_of(q0 + q_rows - 1);
#if BLOCK_SPARSE
        __shared__ QueueSmem queue_smem;
        const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * q_tiles);
        TileQueue walk(queue_smem, block_mask, q_tile, traffic);  // these lists are not sorted
#else
        TileQueue walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
        while (walk.has(0)) {
            const int k0 = walk.tile(0) * BLOCK_N, keys = min(BLOCK_N, key_end - k0);
            const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
            copy_tile<BLOCK_N>(smem.k, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K,
                               traffic);
            walk.fetch(traffic);
            copy_async_commit();
            copy_async_wait();
            __syncthreads();  // Q, K and the mask's cells are in shared memory
            softmax.add(smem, scale, mask, at, traffic);
            __syncthreads();  // everyone is done with K before it is overwritten
            walk.advance();
        }
        softmax.finish(m_smem, l_smem, at);
    }
    store_statistics(m_smem, l_smem, lse_smem, row_m + stats_row, row_scale + stats_row, q_rows,
                     traffic);
    TRAFFIC_FLUSH(traffic);
}
#endif

// dk and dv of one K/V tile, over the Q tiles of every head of q that shares it; adds to dq_sum.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
flash_mma_backward_keys(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                        const io_t* v, Strides v_strides, const io_t* d_out,
                        Strides d_out_strides, const float* row_m, const float* row_scale,
                        const float* delta, float* dq_sum, io_t* dk, Strides dk_strides, io_t* dv,
                        Strides dv_strides, int nheads, int kv_group, int seqlen_q, int seqlen_k,
                        Band band,
                        float scale QUEUE_PARAMS EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    BackwardSmem smem(smem_bytes);
    const KeyPlace at;
    const int k_tiles = ceil_div(seqlen_k, BLOCK_N);  // of the longest sequence, if packed
#if BLOCK_SPARSE
    const Turn turn(blockIdx.x, k_tiles, gridDim.x / k_tiles, heads_in_section);
    const int batch_kv = turn.head;
    int k0 = 0;  // the list says
#else
    // The first tile first: under a causal mask it has the most work.
    const int k_tile = blockIdx.x % k_tiles, k0 = k_tile * BLOCK_N;
    const int batch_kv = blockIdx.x / k_tiles;
#endif
    const int nheads_kv = nheads / kv_group;
    const i64 batch = batch_kv / nheads_kv, kv_head = batch_kv % nheads_kv;
    const float to_gradient = scale * UNITS_TO_LN;  // scores carry log2(e) where exp is exp2

    Traffic traffic;
    Gradient dk_frags, dv_frags;
    clear(dk_frags);
    clear(dv_frags);
    bool loaded = false;  // nobody attends some K/V tiles: they are not loaded at all
    for (int member = 0; member < kv_group; ++member) {
        const i64 head = kv_head * kv_group + member, bh = batch * nheads + head;
        const Sequence seq = SEQUENCE(bh, batch, head);
        if (PACKED && k0 >= seq.seqlen_k) return;  // past the end of a shorter sequence
        const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
        const Extras extras(batch, head EXTRAS_ARGS);
#if BLOCK_SPARSE
        __shared__ QueueSmem queue_smem;
        __syncthreads();  // no thread still looks at the entries of the head before
        const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * k_tiles);
        TileQueue walk(queue_smem, block_mask, turn.turn, traffic);
        k0 = walk.own() * BLOCK_N;  // the same one for all heads of a group
#endif
        const int keys = min(BLOCK_N, range.end_of(seq.seqlen_q - 1) - k0);
#if !BLOCK_SPARSE
        const RowTiles rows_of(range, seq.seqlen_q, k0, keys);
        // With longer rows of dq, going round costs more in L2 than meeting there.
        const int tiles = max(0, rows_of.stop - rows_of.first);
        RoundQueue walk(rows_of.first, rows_of.stop,
                        HEAD_DIM_PAD <= 128 ? int(i64(tiles) * k_tile / k_tiles) : 0);
#endif
        if (!walk.has(0)) continue;
        const io_t* q_head = q + seq.batch * q_strides.batch + head * q_strides.head +
                             seq.q_row0 * q_strides.row;
        const io_t* d_out_head = d_out + seq.batch * d_out_strides.batch +
                                 head * d_out_strides.head + seq.q_row0 * d_out_strides.row;
        const auto copy_rows = [&](int after, int stage) {
            const int q0 = walk.tile(after) * BLOCK_M, q_rows = min(BLOCK_M, seq.seqlen_q - q0);
            copy_tile<BLOCK_M, true>(smem.q + stage * Q_BYTES, q_head + q0 * q_strides.row,
                                     q_strides.row, q_rows, TENSOR_Q, traffic);
            copy_tile<BLOCK_M, true>(smem.d_out + stage * Q_BYTES,
                                     d_out_head + q0 * d_out_strides.row, d_out_strides.row,
                                     q_rows, TENSOR_D_OUT, traffic);
            const i64 row = seq.stats_row0 + q0;
            copy_numbers(smem.m(stage), row_m + row, q_rows, TENSOR_LSE, traffic);
            copy_numbers(smem.delta(stage), delta + row, q_rows, TENSOR_DELTA, traffic);
            if (BIAS)
                copy_numbers(smem.row_scale(stage), row_scale + row, q_rows, TENSOR_LSE, traffic);
        };
        if (!loaded) {
            const i64 key = seq.k_row0 + k0;
            const i64 k_at = kv_head * k_strides.head + key * k_strides.row;
            const i64 v_at = kv_head * v_strides.head + key * v_strides.row;
            copy_tile<BLOCK_N, true>(smem.k, k + seq.batch * k_strides.batch + k_at,
                                     k_strides.row, keys, TENSOR_K, traffic);
            copy_tile<BLOCK_N, true>(smem.v, v + seq.batch * v_strides.batch + v_at,
                                     v_strides.row, keys, TENSOR_V, traffic);
            loaded = true;
        }
        copy_rows(0, 0);
        copy_async_commit();
        float* dq_head = dq_sum + seq.stats_row0 * HEAD_DIM;
        int q0_before = 0;
        unsigned ds_before = smem.ds;
        // dq's share of the visit before: by then a barrier has shown its dS to everyone.
        const auto add_dq_before = [&] {
#if !DETERMINISTIC
            add_dq(ds_before, smem.k, dq_head + i64(q0_before) * HEAD_DIM, to_gradient,
                   min(BLOCK_M, seq.seqlen_q - q0_before), at, traffic);
#endif
        };
        for (int visit = 0; walk.has(0); ++visit) {
            const int stage = STAGES == 2 ? visit % 2 : 0, q0 = walk.tile(0) * BLOCK_M;
            const unsigned ds = smem.ds + visit % 2 * S_BYTES;
#if CUTS_TILES
            smem.turn_cells(walk.visit());
#endif
            const TileMask mask =
                TILE_MASK(q0, min(BLOCK_M, seq.seqlen_q - q0), k0, keys);  // fetches cells
            copy_async_wait();
            // What was copied for this visit is there, and dS of the visit before; everyone is done
            // with what that visit used: it is overwritten next.
            __syncthreads();
            walk.fetch(traffic);
            if (STAGES == 2) {
                if (walk.has(1)) copy_rows(1, stage ^ 1);
                copy_async_commit();
            }
            // Two warps share a scheduler. One of them multiplies dS K first and the other last:
            // while the exponentials of one leave the tensor cores idle, the other uses them.
            const bool dq_last = WARPS >= 8 && at.warp >= WARPS / 2;
            if (visit > 0 && !dq_last) add_dq_before();
            if (mask.keeps_all())
                visit_rows<true>(dk_frags, dv_frags, smem, stage, ds, scale, mask, at, traffic);
            else
                visit_rows<false>(dk_frags, dv_frags, smem, stage, ds, scale, mask, at, traffic);
            if (visit > 0 && dq_last) add_dq_before();
            if (STAGES == 1) {
                __syncthreads();  // everyone is done with Q and dO before they are overwritten
                if (walk.has(1)) copy_rows(1, 0);
                copy_async_commit();
            }
            q0_before = q0;
            ds_before = ds;
            walk.advance();
        }
        __syncthreads();  // dS of the last visit is there, and its Q and dO are done with
        add_dq_before();
    }
    __syncthreads();  // everyone is done with K and V: dk and dv take their places
    store_gradient(smem.k, dk_frags, to_gradient, at);
#if DROPOUT
    store_gradient(smem.v, dv_frags, Extras(batch, 0 EXTRAS_ARGS).keep_scale, at);
#else
    store_gradient(smem.v, dv_frags, 1.f, at);
#endif
    __syncthreads();  // both are complete
    const Sequence seq = SEQUENCE(batch * nheads, batch, i64(0));
    const int keys = min(BLOCK_N, seq.seqlen_k - k0);  // those nobody attends get 0
    const i64 key = seq.k_row0 + k0;
    dk += seq.batch * dk_strides.batch + kv_head * dk_strides.head + key * dk_strides.row;
    dv += seq.batch * dv_strides.batch + kv_head * dv_strides.head + key * dv_strides.row;
    store_tile<BLOCK_N>(smem.k, dk, dk_strides.row, keys, TENSOR_DK, traffic);
    store_tile<BLOCK_N>(smem.v, dv, dv_strides.row, keys, TENSOR_DV, traffic);
    TRAFFIC_FLUSH(traffic);
}

#if DETERMINISTIC
// dq of one Q tile, over its K/V tiles: what the forward does with O.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_mma_backward_rows(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides,
                        const io_t* v, Strides v_strides, const io_t* d_out,
                        Strides d_out_strides, const float* row_m, const float* row_scale,
                        const float* delta, io_t* dq, Strides dq_strides, int nheads,
                        int kv_group, int seqlen_q, int seqlen_k, Band band,
                        float scale BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    BackwardSmem smem(smem_bytes);
    const RowPlace at;
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M), bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    Traffic traffic;
#if BLOCK_SPARSE
    __shared__ QueueSmem queue_smem;
    const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * q_tiles);
    TileQueue walk(queue_smem, block_mask, blockIdx.x % q_tiles, traffic);
    const int q0 = walk.own() * BLOCK_M;
#else
    const int q0 = (q_tiles - 1 - blockIdx.x % q_tiles) * BLOCK_M;
#endif
    if (PACKED && q0 >= seq.seqlen_q) return;
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const i64 row = seq.q_row0 + q0, stats_row = seq.stats_row0 + q0;
    q += seq.batch * q_strides.batch + head * q_strides.head + row * q_strides.row;
    d_out += seq.batch * d_out_strides.batch + head * d_out_strides.head + row * d_out_strides.row;
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head + seq.k_row0 * v_strides.row;

    copy_tile<BLOCK_M>(smem.q, q, q_strides.row, q_rows, TENSOR_Q, traffic);
    copy_tile<BLOCK_M>(smem.d_out, d_out, d_out_strides.row, q_rows, TENSOR_D_OUT, traffic);
    copy_numbers(smem.m(0), row_m + stats_row, q_rows, TENSOR_LSE, traffic);
    copy_numbers(smem.delta(0), delta + stats_row, q_rows, TENSOR_DELTA, traffic);
    if (BIAS)
        copy_numbers(smem.row_scale(0), row_scale + stats_row, q_rows, TENSOR_LSE, traffic);
    RowGradient dq_frags;
    clear(dq_frags);
    const int key_end = range.end_of(q0 + q_rows - 1);
#if !BLOCK_SPARSE
    TileQueue walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
    while (walk.has(0)) {
        const int k0 = walk.tile(0) * BLOCK_N, keys = min(BLOCK_N, key_end - k0);
        const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
        copy_tile<BLOCK_N>(smem.k, k + k0 * k_strides.row, k_strides.row, keys, TENSOR_K, traffic);
        copy_tile<BLOCK_N>(smem.v, v + k0 * v_strides.row, v_strides.row, keys, TENSOR_V, traffic);
        walk.fetch(traffic);
        copy_async_commit();
        copy_async_wait();
        __syncthreads();  // all tiles, statistics and the mask's cells are in shared memory
        add_to_rows(dq_frags, smem, scale, mask, at, traffic);
        __syncthreads();  // everyone is done with K and V before they are overwritten
        walk.advance();
    }
    copy_async_commit();
    copy_async_wait();
    __syncthreads();  // without a single tile, the copy of Q could still overwrite dq
    sum_of_splits(dq_frags, reinterpret_cast<float*>(smem_bytes), at);
    store_row_gradient(smem.q, dq_frags, scale * UNITS_TO_LN, at);
    __syncthreads();  // dq is complete
    dq += seq.batch * dq_strides.batch + head * dq_strides.head + row * dq_strides.row;
    store_tile<BLOCK_M>(smem.q, dq, dq_strides.row, q_rows, TENSOR_DQ, traffic);
    TRAFFIC_FLUSH(traffic);
}
#else
// dq = dq_sum, rounded.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_mma_backward_convert(const float* dq_sum, io_t* dq, Strides dq_strides, int nheads,
                           int seqlen_q, int seqlen_k PACKED_PARAMS TRAFFIC_PARAM) {
    Traffic traffic;
    round_tile(dq_sum, dq, dq_strides, nheads, seqlen_q, seqlen_k, traffic PACKED_ARGS);
    TRAFFIC_FLUSH(traffic);
}
#endif

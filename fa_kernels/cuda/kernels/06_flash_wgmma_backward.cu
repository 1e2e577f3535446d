// Gradients by recomputation as Hopper wants them: TMA fetches, wgmma multiplies, each with warps
// of its own.
//
// Source: FlashAttention-3 (arXiv 2407.08608), section 3 and its backward pass: warp
//   specialisation, S and dP transposed, dS alone through shared memory. Differs from it in the
//   order: dV runs on while dS is computed where registers allow (EARLY_DV), dQ of a visit while
//   the next one begins, so that the two warpgroups wait for each other only where dV and dK hide
//   it; in dq going from registers to memory (DQ_BULK: by TMA); and, as in 05, in each block
//   beginning at another Q tile and going round.
// Tensors: q, d_out, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k,
//   HEAD_DIM); fp16 or bf16, last axis contiguous, rows at multiples of 16 bytes; q, k, v, d_out as
//   tensor maps with boxes of BLOCK_M and BLOCK_N rows; lse as the forward gives it, contiguous.
//   dk, dv like k, v; dq like q. Workspace, fp32, contiguous: delta like lse; dq_sum (batch,
//   nheads, Q tiles, BLOCK_M HEAD_DIM_PAD), all zero, within a tile as `add_dq` has it. With
//   -DBLOCK_SPARSE a block mask and the lists by K/V tile (block_mask.cuh, tile_queue.cuh). scale
//   is softmax_scale times log2(e), for convert softmax_scale itself.
// Launch: threads per block, grid and dynamic shared memory of
//   flash_wgmma_backward_delta    THREADS        a block per Q tile of every head of q   none
//   flash_wgmma_backward_keys     THREADS + 128  a block per K/V tile of every kv head   SMEM_BYTES
//   flash_wgmma_backward_convert  THREADS        a block per Q tile of every head of q   Q_BYTES
// SRAM, bytes (SMEM_BYTES): 4 HEAD_DIM_PAD (BLOCK_N + STAGES BLOCK_M) for K, V, Q and dO; 4 BLOCK_M
//   BLOCK_N for two dS; with DQ_BULK 4 BLOCK_M HEAD_DIM_PAD for dq; 8 BLOCK_M + 16 a stage for what
//   goes with it, 16 STAGES + 16 for barriers. A block mask that cuts tiles adds a byte a stage for
//   every block that a tile touches. S, dP, dk, dv and the dq tile are in registers.
// HBM: that of 05_flash_mma_backward with the same tiles.
// Numerics: those of 05_flash_mma_backward; dq before scale is summed in fp32, in any order: its
//   bits differ from run to run, those of dk and dv do not.
// Architectures: sm_90a alone; later ones have no wgmma.
// Changed from 05: products of 64 keys at once from shared memory (wgmma), which reads Q and dO
//   once for 64 keys and not once for 16 or 32; copies by TMA, which take no registers and no
//   instructions of those that compute; barriers between roles (mbarriers), none of the whole
//   block in the loop.
// Limits and verdict: two tilings, 128 x 128 up to d = 64 and 64 x 128 (Q by K/V) up to d = 128,
//   since dk and dv of 64 keys take half of a thread's registers. No bias, no packed sequences, no
//   deterministic dq: 05 has them. Bound by the tensor cores where the exponentials hide behind
//   them; by L2, where Q, dO and dq of all blocks meet.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "backward.cuh"
#include "mma.cuh"
#include "hopper.cuh"
#include "tile_queue.cuh"
#include "wgmma_backward.cuh"

// delta[row] = rowsum(d_out out), and nothing of it is needed on chip.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_wgmma_backward_delta(const io_t* d_out, Strides d_out_strides, const io_t* out,
                           Strides out_strides, float* delta, int nheads, int seqlen_q,
                           int seqlen_k TRAFFIC_PARAM) {
    Traffic traffic;
    delta_of_tile(d_out, d_out_strides, out, out_strides, delta, nheads, seqlen_q, seqlen_k,
                  traffic);
    TRAFFIC_FLUSH(traffic);
}

// dk and dv of one K/V tile, over the Q tiles of every head of q that shares it; adds to dq_sum.
extern "C" __global__ void __launch_bounds__(THREADS + WARPGROUP, 1)
flash_wgmma_backward_keys(const __grid_constant__ TensorMap q_map,
                          const __grid_constant__ TensorMap k_map,
                          const __grid_constant__ TensorMap v_map,
                          const __grid_constant__ TensorMap d_out_map, const float* lse,
                          const float* delta, float* dq_sum, io_t* dk, Strides dk_strides, io_t* dv,
                          Strides dv_strides, int nheads, int kv_group, int seqlen_q, int seqlen_k,
                          Band band, float scale QUEUE_PARAMS EXTRAS_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const BackwardSmem smem(smem_bytes);
    const int k_tiles = ceil_div(seqlen_k, BLOCK_N), nheads_kv = nheads / kv_group;
#if BLOCK_SPARSE
    const Turn turn(blockIdx.x, k_tiles, gridDim.x / k_tiles, heads_in_section);
    const int batch_kv = turn.head;
#else
    const int batch_kv = blockIdx.x / k_tiles;
#endif
    const int batch = batch_kv / nheads_kv, kv_head = batch_kv % nheads_kv;
    const KeyRange range(band, seqlen_q, seqlen_k);
    Traffic traffic;

    if (threadIdx.x == 0) smem.init_barriers();
    __syncthreads();  // the barriers are ready; the last barrier of all threads

    if (threadIdx.x >= THREADS) {  // the warpgroup that fetches: one warp does
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x >= THREADS + WARP) return;
        const int lane = threadIdx.x % WARP;
        if (lane == 0) {
            tensor_map_prefetch(k_map);
            tensor_map_prefetch(q_map);
            tensor_map_prefetch(v_map);
            tensor_map_prefetch(d_out_map);
        }
        Ring<STAGES> ring;
        bool loaded = false;  // nobody attends some K/V tiles: they are not loaded at all
        int k0 = 0;
        for (int member = 0; member < kv_group; ++member) {
            const int head = kv_head * kv_group + member;
            const i64 row0 = (i64(batch) * nheads + head) * seqlen_q;
#if BLOCK_SPARSE
            const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * k_tiles);
            const ListHead list = reinterpret_cast<const ListHead*>(block_mask.start)[turn.turn];
            if (lane == 0) traffic.read(TENSOR_MASK, sizeof(ListHead));
            k0 = list.tile * BLOCK_N;  // the same one for all heads of a group
            const int keys = min(BLOCK_N, range.end_of(seqlen_q - 1) - k0), count = list.count;
            // Goes round, too: blocks that ask for the same Q tiles would add to the same dq.
            const int shift = int(i64(count) * list.tile / k_tiles);
            int entries = 0;  // of this visit and those after, one a lane
#else
            // The first tile first: under a causal mask it has the most work.
            const int k_tile = blockIdx.x % k_tiles;
            k0 = k_tile * BLOCK_N;
            const int keys = min(BLOCK_N, range.end_of(seqlen_q - 1) - k0);
            const RowTiles rows_of(range, seqlen_q, k0, keys);
            const int count = max(0, rows_of.stop - rows_of.first);
            int tile = rows_of.first + int(i64(count) * k_tile / k_tiles);  // goes round
#endif
            for (int i = 0; i < count; ++i) {
                int flags = 0;
#if BLOCK_SPARSE
                if (i % WARP == 0 && i + lane < count) {
                    const int at = i + lane + shift;
                    entries = block_mask.entries[list.start + (at < count ? at : at - count)];
                    traffic.read(TENSOR_MASK, sizeof(int));
                }
                const int entry = __shfl_sync(ALL_LANES, entries, i % WARP);
                const int tile = entry >> FLAG_BITS;
                flags = entry & ((1 << FLAG_BITS) - 1);
#endif
                const int q0 = tile * BLOCK_M, rows = min(BLOCK_M, seqlen_q - q0);
                RowNumbers numbers;
                numbers.load(lse + row0 + q0, delta + row0 + q0, rows, lane, traffic);
                mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
                if (lane == 0) {
                    const unsigned full = smem.full(ring.stage), kv_full = smem.kv_full();
                    const unsigned q_tile = smem.q + ring.stage * Q_BYTES;
                    const unsigned d_out_tile = smem.d_out + ring.stage * Q_BYTES;
                    if (!loaded) {
                        mbarrier_arrive_expecting(kv_full, 2 * KV_BYTES);
                        tma_load_tile<BLOCK_N, SLABS>(smem.k, k_map, k0, kv_head, batch, kv_full);
                    }
                    mbarrier_arrive_expecting(full, 2 * Q_BYTES);
                    tma_load_tile<BLOCK_M, SLABS>(q_tile, q_map, q0, head, batch, full);
                    if (!loaded) {
                        tma_load_tile<BLOCK_N, SLABS>(smem.v, v_map, k0, kv_head, batch, kv_full);
                        const int key_bytes = 2 * HEAD_DIM * min(BLOCK_N, seqlen_k - k0);
                        traffic.read(TENSOR_K, key_bytes);
                        traffic.read(TENSOR_V, key_bytes);
                    }
                    tma_load_tile<BLOCK_M, SLABS>(d_out_tile, d_out_map, q0, head, batch, full);
                    traffic.read(TENSOR_Q, 2 * HEAD_DIM * rows);
                    traffic.read(TENSOR_D_OUT, 2 * HEAD_DIM * rows);
                    smem.visits[ring.stage] = Visit{q0, head, flags, k0};
                }
                loaded = true;
                numbers.store(smem.lse(ring.stage), smem.delta(ring.stage), lane);
#if BLOCK_SPARSE
                fetch_cells(smem.cells_of(ring.stage), block_mask, flags, q0, rows, k0, keys, lane,
                            traffic);
#endif
                warp_arrive(smem.full(ring.stage), lane);
                ring.advance();
#if !BLOCK_SPARSE
                if (++tile == rows_of.stop) tile = rows_of.first;
#endif
            }
        }
        mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
        if (lane == 0) {
            smem.visits[ring.stage] = Visit{-1, 0, 0, k0};
            mbarrier_arrive(smem.full(ring.stage));
        }
        warp_arrive(smem.full(ring.stage), lane);
        __syncwarp();  // its counters are added up by all lanes
        TRAFFIC_FLUSH(traffic);
        return;
    }

    take_registers<CONSUMER_REGISTERS>();
    const KeyPlace at;
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);
    const float to_gradient = scale * LN2;  // scores carry log2(e), so that exp is exp2
    // This warpgroup's keys, and its piece of dq: of the dS tile's rows of Q, or of K's columns.
    const unsigned k_rows = smem.k + at.group * GROUP_KEYS * SLAB_ROW_BYTES;
    const unsigned v_rows = smem.v + at.group * GROUP_KEYS * SLAB_ROW_BYTES;
    const unsigned ds_slab = smem.ds + (SLABS == 1 ? at.group * slab_bytes(BLOCK_N) : 0);
    const unsigned k_slab = smem.k + (SLABS == 1 ? 0 : at.group * slab_bytes(BLOCK_N));
    Gradient dk_frags, dv_frags;
#pragma unroll
    for (int n = 0; n < D_FRAGS; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) dk_frags[n][i] = dv_frags[n][i] = 0.f;

    Ring<STAGES> ring;
    float* dq_to = nullptr;  // where this warpgroup's piece of dq goes
    int dq_rows = 0;
    unsigned odd = 0;  // visits so far: which dS, and the phase of its barrier
    Scores p;
    mbarrier_wait(smem.full(0), 0);
    Visit visit = smem.visits[0];
    const int k0 = visit.k0;
    if (visit.q0 >= 0) mbarrier_wait(smem.kv_full(), 0);
    wgmma_fence();
    scores(p, k_rows, smem.q);
    while (visit.q0 >= 0) {
        const unsigned q_tile = smem.q + ring.stage * Q_BYTES;
        const unsigned d_out_tile = smem.d_out + ring.stage * Q_BYTES;
        Scores dp;
        wgmma_wait<0>();  // S is there
        pin(p);
#if !READS_ELEMENTS
        wgmma_fence();
        scores(dp, v_rows, d_out_tile);
#endif
        const Extras extras(batch, visit.head EXTRAS_ARGS);
        const int rows = min(BLOCK_M, seqlen_q - visit.q0);
        const int keys = min(BLOCK_N, range.end_of(seqlen_q - 1) - k0);
        TileMask mask(extras, range, visit.q0, rows, k0, keys);
        look_at_cells(mask, visit, smem.cells_of(ring.stage));
        dq_to = dq_sum + (((i64(batch) * nheads + visit.head) * q_tiles + visit.q0 / BLOCK_M) *
                              GROUPS + at.group) * PIECE;
        dq_rows = rows;

        LeftOperand p_left, ds_left;
        if (mask.keeps_all())
            probabilities<true>(p, smem.lse(ring.stage), scale, mask, at, traffic);
        else
            probabilities<false>(p, smem.lse(ring.stage), scale, mask, at, traffic);
#if READS_ELEMENTS  // what is read for every element takes the registers of dP
        wgmma_fence();
        scores(dp, v_rows, d_out_tile);
#endif
#if EARLY_DV
        pack_kept(p_left, p);
        wgmma_fence();
        add_to_keys(dv_frags, p_left, d_out_tile);
        wgmma_commit();
        wgmma_wait<1>();
#else
        wgmma_wait<0>();
#endif
        pin(dp);
        gradients_of_scores(dp, p, smem.delta(ring.stage), mask, at);
        pack(ds_left, dp);
        // The other warpgroup is done with this dS: it had its dQ of two visits ago before it
        // stored its dS of the last one, for which this one has waited.
        store_ds(smem.ds + odd * DS_BYTES, ds_left, at);
        fence_for_async();
        warp_arrive(smem.ds_full(), at.lane);
#if !EARLY_DV
        pack_kept(p_left, p);
        wgmma_fence();
        add_to_keys(dv_frags, p_left, d_out_tile);
#endif
        wgmma_fence();
        add_to_keys(dk_frags, ds_left, q_tile);
        wgmma_commit();
        mbarrier_wait(smem.ds_full(), odd);  // while dV and dK run
        RowPiece dq;
        wgmma_fence();
        row_gradient(dq, ds_slab + odd * DS_BYTES, k_slab);
        wgmma_wait<1>();  // dV and dK are done, dQ goes on
        warp_arrive(smem.empty(ring.stage), at.lane);
        ring.advance();
        odd ^= 1;
        mbarrier_wait(smem.full(ring.stage), ring.parity);
        visit = smem.visits[ring.stage];
        wgmma_fence();
        scores(p, k_rows, smem.q + ring.stage * Q_BYTES);
        wgmma_wait<1>();
        pin(dq);
        add_dq(dq_to, dq, dq_rows, smem, at, traffic);
    }
    wgmma_wait<0>();
    pin(dk_frags);
    pin(dv_frags);
    barrier(1, THREADS);  // both are done with K and V: dk and dv take their places
    store_gradient(smem.k, dk_frags, to_gradient, at);
#if DROPOUT
    store_gradient(smem.v, dv_frags, Extras(batch, 0 EXTRAS_ARGS).keep_scale, at);
#else
    store_gradient(smem.v, dv_frags, 1.f, at);
#endif
    barrier(1, THREADS);  // both are complete
    const int keys = min(BLOCK_N, seqlen_k - k0);  // those nobody attends get 0
    dk += batch * dk_strides.batch + kv_head * dk_strides.head + k0 * dk_strides.row;
    dv += batch * dv_strides.batch + kv_head * dv_strides.head + k0 * dv_strides.row;
    store_tile<BLOCK_N>(smem.k, dk, dk_strides.row, keys, TENSOR_DK, traffic);
    store_tile<BLOCK_N>(smem.v, dv, dv_strides.row, keys, TENSOR_DV, traffic);
#if DQ_BULK
    if (threadIdx.x % WARPGROUP == 0) bulk_wait();  // shared memory must live so long
    __syncwarp();
#endif
    TRAFFIC_FLUSH(traffic);
}

// dq = scale dq_sum, rounded: the Q tile of this block.
extern "C" __global__ void __launch_bounds__(THREADS)
flash_wgmma_backward_convert(const float* dq_sum, io_t* dq, Strides dq_strides, int nheads,
                             int seqlen_q, int seqlen_k, float scale TRAFFIC_PARAM) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const unsigned tile = smem_address(smem_bytes);
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);
    const int q0 = blockIdx.x % q_tiles * BLOCK_M, bh = blockIdx.x / q_tiles;
    const i64 batch = bh / nheads, head = bh % nheads;
    const int q_rows = min(BLOCK_M, seqlen_q - q0);
    const int piece = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
    Traffic traffic;
    dq_sum += (i64(blockIdx.x) * GROUPS + piece) * PIECE + 4 * thread;
    const int row = piece_row(piece) + thread / WARP * 16 + thread % WARP / 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float4 four = *reinterpret_cast<const float4*>(dq_sum + 4 * WARPGROUP * n);
        const int chunk = piece_col(piece) / 8 + n, at = thread % 4 * 4;
        store_shared(chunk_address(tile, row, chunk) + at, pack(four.x * scale, four.y * scale));
        store_shared(chunk_address(tile, row + 8, chunk) + at,
                     pack(four.z * scale, four.w * scale));
    }
    if (threadIdx.x == 0) traffic.read(TENSOR_DQ, 4 * q_rows * HEAD_DIM);  // the rest is padding
    __syncthreads();  // the tile is complete
    dq += batch * dq_strides.batch + head * dq_strides.head + q0 * dq_strides.row;
    store_tile<BLOCK_M>(tile, dq, dq_strides.row, q_rows, TENSOR_DQ, traffic);
    TRAFFIC_FLUSH(traffic);
}

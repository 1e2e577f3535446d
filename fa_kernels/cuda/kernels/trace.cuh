// -DTRACE: what the online softmax holds for one row after every K/V tile, for the stepper.
//
// A record is TRACE_HEADER floats and then the accumulator: first key of the tile, one past its
// last, whether acc is normalised (1) or still to be divided by l (0), m in natural-log units, l,
// alpha, acc[HEAD_DIM]. Without -DTRACE every call compiles to nothing.
#pragma once

#include "tile.cuh"

#if TRACE
constexpr int TRACE_HEADER = 6;
#define TRACE_PARAMS , float *trace, i64 trace_row

struct Tracer {
    float* records;
    i64 row;  // counted over all heads: bh * seqlen_q + row
    float l_old = 1.f;

    __device__ __forceinline__ Tracer(float* records, i64 row) : records(records), row(row) {}
    // Where alpha_smem will hold alpha l_old: call while l_smem still holds the old l.
    __device__ __forceinline__ void note_old_l(i64 tile_row0, int rows, const float* l_smem) {
        if (row >= tile_row0 && row < tile_row0 + rows) l_old = l_smem[row - tile_row0];
    }
    // Call where m, l, alpha and acc of one pass are complete and nobody changes them.
    __device__ __forceinline__ void record(i64 tile_row0, int rows, int k0, int keys,
                                           bool normalised, const float* m_smem,
                                           const float* l_smem, const float* alpha_smem,
                                           const OTile& o) {
        if (row < tile_row0 || row >= tile_row0 + rows) return;
        const int r = static_cast<int>(row - tile_row0);
        if (threadIdx.x == 0) {
            const float header[TRACE_HEADER] = {
                float(k0), float(k0 + keys), normalised ? 1.f : 0.f, m_smem[r] * UNITS_TO_LN,
                l_smem[r], l_old == 0.f ? 0.f : alpha_smem[r] / l_old};
            for (int i = 0; i < TRACE_HEADER; ++i) records[i] = header[i];
        }
#pragma unroll
        for (int i = 0; i < OTile::O_ROWS; ++i) {
            if (OTile::row(i) != r) continue;
#pragma unroll
            for (int j = 0; j < O_COL_GROUPS; ++j) {
                const int col = OTile::group(j) * 4;
                const int n = min(4, HEAD_DIM - col);
                if (n > 0) store_four<false>(records + TRACE_HEADER + col, o.acc[i][j], n);
            }
        }
        records += TRACE_HEADER + HEAD_DIM;
    }
};
#define TRACER Tracer tracer(trace, trace_row)
#define TRACE_RECORD(...) tracer.record(__VA_ARGS__)
#define TRACE_OLD_L(...) tracer.note_old_l(__VA_ARGS__)
#else
#define TRACE_PARAMS
#define TRACER
#define TRACE_RECORD(...)
#define TRACE_OLD_L(...)
#endif

// What masks or shifts a score, and what dropout does to a probability: one set of hooks for all.
//
// Every option is a macro, 0 when off, and then costs nothing: the functions become constants.
//   WINDOW   a row also has a first key                      Band.begin
//   MASK     bool, one byte an element, True = attend        any strides, 0 where it broadcasts
//   BIAS     added to scale * q.k; 1 = io dtype, 2 = fp32    any strides; -inf masks
//   DROPOUT  1 = drawn by Philox, 2 = a keep mask is given   after the softmax, times 1/(1-p)
//   PACKED   sequences behind one another, cu_seqlens        batch counts sequences
// Causal needs no macro: every row has a last key. GQA neither: head h uses k/v head h / kv_group.
//
// Scores are in log2 units, scale * log2(e) * q.k, so that exp is exp2. With a BIAS they are in
// natural units: finfo.min, which frameworks use for "masked", times log2(e) would be -inf.
#pragma once

#include "io.cuh"
#include "philox.cuh"

// Builds with options need registers of their own: ptxas must not spill to fit one block more.
#define HAS_OPTIONS (MASK || BIAS || DROPOUT || PACKED)

constexpr float UNITS_TO_LOG2 = BIAS ? LOG2E : 1.f;
constexpr float UNITS_TO_LN = BIAS ? 1.f : LN2;
#define LOWEST (-3.402823466e38f)  // the lowest finite fp32
#if IO_BITS == 16
#define IO_LOWEST (IO_BF16 ? -3.3895313892515355e38f : -65504.f)
#else
#define IO_LOWEST LOWEST
#endif

// Two to the power of a difference of scores.
__device__ __forceinline__ float exp_units(float difference) {
    return exp2f(difference * UNITS_TO_LOG2);
}

// ---- causal and window ------------------------------------------------------------------------
// Row r attends the keys r + begin .. r + end. Of packed sequences the host knows the band without
// the lengths: there begin and bottom_right count from the diagonal that ends at the bottom right,
// and `end` from the one that starts at the top left.
struct Band {
    i64 begin, end, bottom_right;
};

// The band of one sequence, and the keys of it that exist.
struct KeyRange {
    i64 begin, end;
    int seqlen_k;

    __device__ __forceinline__ KeyRange(const Band& band, int seqlen_q, int seqlen_k)
        : begin(band.begin), end(band.end), seqlen_k(seqlen_k) {
#if PACKED
        begin += seqlen_k - seqlen_q;
        end = min(end, band.bottom_right + seqlen_k - seqlen_q);
        // A causal diagonal left of the window leaves no key to any row.
        if (begin > end) begin = end = -seqlen_q;
#endif
    }
    __device__ __forceinline__ int begin_of(i64 row) const {
        return WINDOW ? int(max(i64(0), min(i64(seqlen_k), row + begin))) : 0;
    }
    __device__ __forceinline__ int end_of(i64 row) const {
        return int(max(i64(0), min(i64(seqlen_k), row + end + 1)));
    }
};

// ---- packed sequences -------------------------------------------------------------------------
// Where the sequence of a block lies; `batch` is that of the arrays.
struct Sequence {
    i64 batch, q_row0, k_row0;
    int seqlen_q, seqlen_k;
    i64 stats_row0;  // its first row in lse and in whatever else has a value for every row of q
};

#if PACKED
#define PACKED_PARAMS , const int *cu_seqlens_q, const int *cu_seqlens_k, i64 total_q
#define PACKED_ARGS , cu_seqlens_q, cu_seqlens_k, total_q
#define SEQUENCE(bh, batch, head)                                                                  \
    Sequence{0, cu_seqlens_q[batch], cu_seqlens_k[batch],                                         \
             cu_seqlens_q[(batch) + 1] - cu_seqlens_q[batch],                                     \
             cu_seqlens_k[(batch) + 1] - cu_seqlens_k[batch],                                     \
             (head) * total_q + cu_seqlens_q[batch]}
#else
#define PACKED_PARAMS
#define PACKED_ARGS
#define SEQUENCE(bh, batch, head)                                                                  \
    Sequence{batch, 0, 0, seqlen_q, seqlen_k, i64(bh) * seqlen_q}
#endif

// ---- mask, bias, dropout ----------------------------------------------------------------------
struct Strides4 {
    i64 batch, head, row, col;
};

#if MASK
#define MASK_PARAMS , const unsigned char *mask, Strides4 mask_strides
#define MASK_ARGS , mask, mask_strides
#else
#define MASK_PARAMS
#define MASK_ARGS
#endif
#if BIAS == 2
using bias_t = float;
__device__ __forceinline__ float bias_to_float(bias_t value) {
    return value;
}
#elif BIAS
using bias_t = io_t;
__device__ __forceinline__ float bias_to_float(bias_t value) {
    return to_float(value);
}
#endif
#if BIAS
#define BIAS_PARAMS , const bias_t *bias, Strides4 bias_strides
#define BIAS_ARGS , bias, bias_strides
#else
#define BIAS_PARAMS
#define BIAS_ARGS
#endif
#if DROPOUT == 1
#define DROPOUT_PARAMS , u64 seed, unsigned drop_below, float keep_scale
#define DROPOUT_ARGS , seed, drop_below, keep_scale
#elif DROPOUT == 2
#define DROPOUT_PARAMS , const unsigned char *keep, Strides4 keep_strides, float keep_scale
#define DROPOUT_ARGS , keep, keep_strides, keep_scale
#else
#define DROPOUT_PARAMS
#define DROPOUT_ARGS
#endif
#define EXTRAS_PARAMS MASK_PARAMS BIAS_PARAMS DROPOUT_PARAMS
#define EXTRAS_ARGS MASK_ARGS BIAS_ARGS DROPOUT_ARGS
// Whether an element is looked up by row: rows past the end of q must then be left alone.
#define READS_ELEMENTS (MASK || BIAS || DROPOUT == 2)

// The arrays of one (batch, head), asked by row and key within the sequence.
struct Extras {
#if MASK
    const unsigned char* mask;
    i64 mask_row, mask_col;
#endif
#if BIAS
    const bias_t* bias;
    i64 bias_row, bias_col;
#endif
#if DROPOUT == 1
    u64 seed;
    unsigned drop_below, head, batch;
    float keep_scale;
#elif DROPOUT == 2
    const unsigned char* keep;
    i64 keep_row, keep_col;
    float keep_scale;
#endif

    __device__ __forceinline__ Extras(i64 batch, i64 head EXTRAS_PARAMS) {
#if MASK
        this->mask = mask + batch * mask_strides.batch + head * mask_strides.head;
        mask_row = mask_strides.row;
        mask_col = mask_strides.col;
#endif
#if BIAS
        this->bias = bias + batch * bias_strides.batch + head * bias_strides.head;
        bias_row = bias_strides.row;
        bias_col = bias_strides.col;
#endif
#if DROPOUT == 1
        this->seed = seed;
        this->drop_below = drop_below;
        this->head = static_cast<unsigned>(head);
        this->batch = static_cast<unsigned>(batch);
#elif DROPOUT == 2
        this->keep = keep + batch * keep_strides.batch + head * keep_strides.head;
        keep_row = keep_strides.row;
        keep_col = keep_strides.col;
#endif
#if DROPOUT
        this->keep_scale = keep_scale;
#endif
    }

    // A score that goes to HBM in the io dtype: only -inf may become -inf.
    static __device__ __forceinline__ float storable(float value) {
#if BIAS
        if (value < IO_LOWEST && value != -INF) value = IO_LOWEST;
#endif
        return value;
    }

    // The score of an element that causal, window and block mask keep; -inf where it is masked.
    __device__ __forceinline__ float score(i64 row, i64 col, float value, Traffic& traffic) const {
#if BIAS
        const float shift = bias_to_float(bias[row * bias_row + col * bias_col]);
        traffic.read(TENSOR_MASK, sizeof(bias_t));
        value += shift;
        // finfo.min plus a negative score is -inf, which would mean masked; and NaN stays NaN.
        if (value < LOWEST) value = LOWEST;
        if (shift == -INF) value = -INF;
#endif
#if MASK
        traffic.read(TENSOR_MASK, 1);
        if (!mask[row * mask_row + col * mask_col]) value = -INF;
#endif
        return value;
    }

#if DROPOUT == 1
    // The draw that serves this element (philox.cuh). Its words: rows r, r + 8 of keys c, c + 1,
    // then of keys c + 8, c + 9.
    __device__ __forceinline__ uint4 draw(i64 row, i64 col) const {
        const unsigned r = static_cast<unsigned>(row), c = static_cast<unsigned>(col);
        return philox(make_uint4(r / 16 * 8 + r % 8, c / 16 * 4 + c % 8 / 2, head, batch), seed);
    }
    // Its word about an element.
    static __device__ __forceinline__ int word_of(i64 row, i64 col) {
        return static_cast<int>(row / 8 % 2 + col / 8 % 2 * 2);
    }
    // Whether it drops the even key or the odd one of a word.
    __device__ __forceinline__ bool drops(unsigned word, bool odd) const {
        return (odd ? word : word << 16) < drop_below;
    }
#endif

    // What dropout multiplies a probability with: 0 or 1 / (1 - p).
    __device__ __forceinline__ float keep_factor(i64 row, i64 col, Traffic& traffic) const {
#if DROPOUT == 1
        return drops(word(draw(row, col), word_of(row, col)), col % 2) ? 0.f : keep_scale;
#elif DROPOUT == 2
        traffic.read(TENSOR_MASK, 1);
        return keep[row * keep_row + col * keep_col] ? keep_scale : 0.f;
#else
        return 1.f;
#endif
    }

#if DROPOUT == 1
    // The same for four neighbouring keys, the first a multiple of 4: two draws instead of four.
    __device__ __forceinline__ float4 keep_factors(i64 row, i64 col) const {
        const int which = word_of(row, col);
        const unsigned left = word(draw(row, col), which);
        const unsigned right = word(draw(row, col + 2), which);
        return make_float4(drops(left, false) ? 0.f : keep_scale,
                           drops(left, true) ? 0.f : keep_scale,
                           drops(right, false) ? 0.f : keep_scale,
                           drops(right, true) ? 0.f : keep_scale);
    }
#endif
};

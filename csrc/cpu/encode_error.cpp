#include "cpu/encode_error.h"

#include <algorithm>
#include <vector>

#include "core/encoding.h"
#include "cpu/multiversion.h"
#include "cpu/row_decoder.h"

namespace ngram_ple::cpu {
namespace {

constexpr int kLanes = 8;

// Sums over many values, a lane each: a compiler may not reorder one sum of floats.
struct Lanes {
  float squared_error[kLanes] = {}, squared_value[kLanes] = {};
  uint32_t largest_error[kLanes] = {};
  int32_t saturated[kLanes] = {}, zeroed[kLanes] = {}, not_finite[kLanes] = {};
};

template <bool kAllFinite>
NGP_ALWAYS_INLINE void add_value(Lanes& lanes, int j, float value, float decoded, float most) {
  const bool finite = kAllFinite || (bits_of(value) & kInfinityBits) != kInfinityBits;
  const float known = kAllFinite ? value : float_from_bits(select(finite, bits_of(value), 0u));
  const float off = value - decoded;
  const float error = kAllFinite ? off : float_from_bits(select(finite, bits_of(off), 0u));
  const uint32_t magnitude = bits_of(known) & 0x7FFFFFFFu;
  lanes.squared_error[j] += error * error;
  lanes.squared_value[j] += known * known;
  lanes.largest_error[j] = std::max(lanes.largest_error[j], bits_of(error) & 0x7FFFFFFFu);
  lanes.saturated[j] += magnitude > bits_of(most);
  lanes.zeroed[j] += (magnitude != 0) & ((bits_of(decoded) & 0x7FFFFFFFu) == 0);
  if (!kAllFinite) lanes.not_finite[j] += !finite;
}

// Spans of `span` values that share what their scale reaches.
template <int64_t kSpan, bool kAllFinite>
NGP_ALWAYS_INLINE void add_spans(const float* NGP_RESTRICT values, const float* NGP_RESTRICT decoded,
                                 const float* NGP_RESTRICT most, int64_t spans, int64_t span, Lanes& out) {
  const int64_t length = kSpan == 0 ? span : kSpan;
  Lanes lanes;
  for (int64_t s = 0; s < spans; ++s, values += length, decoded += length) {
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes) {
      for (int j = 0; j < kLanes; ++j)
        add_value<kAllFinite>(lanes, j, values[i + j], decoded[i + j], most[s]);
    }
    for (; i < length; ++i) add_value<kAllFinite>(lanes, 0, values[i], decoded[i], most[s]);
  }
  out = lanes;
}

#define NGP_ADD_SPANS(name, span_length, all_finite)                                                      \
  NGP_MULTIVERSION void name(const float* values, const float* decoded, const float* most, int64_t spans, \
                             int64_t span, Lanes& out) {                                                  \
    add_spans<span_length, all_finite>(values, decoded, most, spans, span, out);                          \
  }
NGP_ADD_SPANS(add_blocks, kBlockElements, true)
NGP_ADD_SPANS(add_rows, 0, true)
NGP_ADD_SPANS(add_odd_blocks, kBlockElements, false)
NGP_ADD_SPANS(add_odd_rows, 0, false)
#undef NGP_ADD_SPANS

int64_t first_bad_row(const float* values, int64_t rows, int64_t head_dim) {
  for (int64_t i = 0; i < rows * head_dim; ++i) {
    if ((bits_of(values[i]) & kInfinityBits) == kInfinityBits) return i / head_dim;
  }
  return -1;
}

void add_lanes(const Lanes& lanes, EncodeError& sums) {
  for (int j = 0; j < kLanes; ++j) {
    sums.largest_error = std::max(sums.largest_error, float_from_bits(lanes.largest_error[j]));
    sums.saturated += lanes.saturated[j];
    sums.zeroed += lanes.zeroed[j];
    sums.not_finite += lanes.not_finite[j];
  }
}

// The lanes' squares, unless fp32 could not hold them: then each once more in double.
void add_squares(const Lanes& lanes, const float* values, const float* decoded, int64_t count,
                 EncodeError& sums) {
  constexpr double kMost = 1e36, kLeast = 1e-24;
  double error = 0, value = 0;
  for (int j = 0; j < kLanes; ++j) {
    error += static_cast<double>(lanes.squared_error[j]);
    value += static_cast<double>(lanes.squared_value[j]);
  }
  if (!(value < kMost && error < kMost) || value < kLeast) {
    error = value = 0;
    for (int64_t i = 0; i < count; ++i) {
      if ((bits_of(values[i]) & kInfinityBits) == kInfinityBits) continue;
      const double exact = static_cast<double>(values[i]), off = exact - static_cast<double>(decoded[i]);
      value += exact * exact;
      error += off * off;
    }
  }
  sums.squared_error += error;
  sums.squared_value += value;
}

}  // namespace

void add_encode_error(const EncodeArgs& args, const uint8_t* values, int64_t count, const uint8_t* rows,
                      const uint8_t* scales, EncodeError& sums) {
  const RowFormat& format = args.to;
  const int64_t head_dim = format.head_dim, from_bytes = args.from == Format::fp32 ? 4 : 2;
  const bool blocks = format.format == Format::nvfp4, rowwise = format.format == Format::fp8_rowwise;
  const int64_t scale_bytes = rowwise && args.scale_is_bf16 ? 2 : format.scale_bytes;
  const int64_t step = std::max<int64_t>(1, kEncodeChunk / head_dim),
                span = blocks ? kBlockElements : head_dim;
  std::vector<float> wide(static_cast<size_t>(step * head_dim)), decoded(wide.size());
  std::vector<float> most(static_cast<size_t>(step * head_dim / span), format.format == Format::fp8
                                                                           ? kMostE4m3 * args.global_scale
                                                                           : most_of(format.format));
  std::vector<RowAddress> addresses(static_cast<size_t>(step));
  const DecodeArgs decode{format, args.global_scale, args.scale_is_bf16};
  const RowDecoder decoder = find_row_decoder(format.format, OutType::fp32);
  for (int64_t row = 0; row < count; row += step) {
    const int64_t n = std::min(step, count - row);
    const uint8_t* from = values + row * head_dim * from_bytes;
    widen(args.from, from, n * head_dim, wide.data());
    for (int64_t i = 0; i < n; ++i) {
      addresses[static_cast<size_t>(i)] = {rows + (row + i) * format.row_bytes,
                                           scales + (row + i) * scale_bytes};
      if (rowwise)
        most[static_cast<size_t>(i)] = kMostE4m3 * load_row_scale(decode, addresses[static_cast<size_t>(i)]);
    }
    if (blocks) {
      const uint8_t* codes = scales + row * scale_bytes;
      for (int64_t b = 0; b < n * scale_bytes; ++b) {
        most[static_cast<size_t>(b)] = (kMostE2m1 * e4m3_to_float(codes[b])) * args.global_scale;
      }
    }
    decoder(decode, addresses.data(), n, reinterpret_cast<uint8_t*>(decoded.data()));
    const float largest = largest_magnitude(args.from, from, n * head_dim, false);
    const auto add_all = blocks ? add_blocks : add_rows, add_odd = blocks ? add_odd_blocks : add_odd_rows;
    Lanes lanes;
    (largest <= most_of(Format::fp32) ? add_all : add_odd)(wide.data(), decoded.data(), most.data(),
                                                           n * head_dim / span, span, lanes);
    const int64_t before = sums.not_finite;
    add_lanes(lanes, sums);
    add_squares(lanes, wide.data(), decoded.data(), n * head_dim, sums);
    if (before == 0 && sums.not_finite != 0) {
      sums.first_not_finite = row + first_bad_row(wide.data(), n, head_dim);
    }
  }
}

}  // namespace ngram_ple::cpu

#include "cpu/encode_error.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/encoding.h"
#include "cpu/multiversion.h"
#include "cpu/row_decoder.h"

namespace ngram_ple::cpu {
namespace {

constexpr int64_t kLanes = 8;
constexpr uint32_t kMagnitude = 0x7FFFFFFFu;

// Sums over many values, a lane each: a compiler may not reorder one sum of floats.
struct Lanes {
  float squared_error[kLanes], squared_value[kLanes], largest_error[kLanes];
  int32_t saturated[kLanes], zeroed[kLanes];
};

// Finite values in spans of `length` that share what their scale reaches.
NGP_ALWAYS_INLINE void add_spans(const float* values, const float* decoded, const float* most, int64_t spans,
                                 int64_t length, Lanes& out) {
  using Floats __attribute__((vector_size(kLanes * 4))) = float;
  using Ints __attribute__((vector_size(kLanes * 4))) = int32_t;
  Floats squared_error{}, squared_value{}, largest_error{};
  Ints saturated{}, zeroed{};
  for (int64_t s = 0; s < spans; ++s, values += length, decoded += length) {
    for (int64_t i = 0; i < length; i += kLanes) {
      Floats value{}, back{};  // zeros beyond the span's end: they change no sum
      if (i + kLanes <= length) {
        std::memcpy(&value, values + i, sizeof value);
        std::memcpy(&back, decoded + i, sizeof back);
      } else {
        for (int64_t j = 0; i + j < length; ++j) value[j] = values[i + j], back[j] = decoded[i + j];
      }
      const Floats error = value - back;
      const Floats size = (Floats)((Ints)value & (int32_t)kMagnitude);
      const Floats off = (Floats)((Ints)error & (int32_t)kMagnitude);
      squared_error += error * error;
      squared_value += value * value;
      largest_error = largest_error > off ? largest_error : off;
      saturated -= size > most[s];  // true is -1
      zeroed -= (back == 0.0f) & (value != 0.0f);
    }
  }
  std::memcpy(out.squared_error, &squared_error, sizeof squared_error);
  std::memcpy(out.squared_value, &squared_value, sizeof squared_value);
  std::memcpy(out.largest_error, &largest_error, sizeof largest_error);
  std::memcpy(out.saturated, &saturated, sizeof saturated);
  std::memcpy(out.zeroed, &zeroed, sizeof zeroed);
}

NGP_MULTIVERSION void add_blocks(const float* values, const float* decoded, const float* most, int64_t spans,
                                 int64_t, Lanes& out) {
  add_spans(values, decoded, most, spans, kBlockElements, out);
}
NGP_MULTIVERSION void add_rows(const float* values, const float* decoded, const float* most, int64_t spans,
                               int64_t length, Lanes& out) {
  add_spans(values, decoded, most, spans, length, out);
}

// What the scales of nvfp4's blocks reach.
NGP_MULTIVERSION void block_reach(const uint8_t* NGP_RESTRICT codes, int64_t blocks, float global_scale,
                                  float* NGP_RESTRICT most) {
  for (int64_t b = 0; b < blocks; ++b) most[b] = (kMostE2m1 * e4m3_to_float(codes[b])) * global_scale;
}

// Whether fp32 held the sums of squares; not so where a value is NaN or infinite.
bool add_lanes(const Lanes& lanes, EncodeError& sums) {
  constexpr double kMost = 1e36, kLeast = 1e-24;
  double error = 0, value = 0;
  for (int j = 0; j < kLanes; ++j) {
    error += static_cast<double>(lanes.squared_error[j]);
    value += static_cast<double>(lanes.squared_value[j]);
  }
  if (!(value < kMost && error < kMost && value > kLeast)) return false;
  sums.squared_error += error;
  sums.squared_value += value;
  for (int j = 0; j < kLanes; ++j) {
    sums.largest_error = std::max(sums.largest_error, lanes.largest_error[j]);
    sums.saturated += lanes.saturated[j];
    sums.zeroed += lanes.zeroed[j];
  }
  return true;
}

// Any values, one after the other: the definition.
void add_each(const float* values, const float* decoded, const float* most, int64_t count, int64_t span,
              int64_t first_row, int64_t head_dim, EncodeError& sums) {
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = float_from_bits(bits_of(values[i]) & kMagnitude);
    if (!(magnitude <= most_of(Format::fp32))) {
      if (sums.not_finite++ == 0) sums.first_not_finite = first_row + i / head_dim;
      continue;
    }
    const float error = values[i] - decoded[i];
    const double exact = static_cast<double>(values[i]), off = exact - static_cast<double>(decoded[i]);
    sums.squared_value += exact * exact;
    sums.squared_error += off * off;
    sums.largest_error = std::max(sums.largest_error, float_from_bits(bits_of(error) & kMagnitude));
    sums.saturated += magnitude > most[i / span];
    sums.zeroed += decoded[i] == 0.0f && magnitude != 0.0f;
  }
}

}  // namespace

void encode_measured(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                     uint8_t* scales, EncodeError& sums) {
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
    uint8_t *to = rows + row * format.row_bytes, *to_scales = scales + row * scale_bytes;
    encode(args, from, n, to, to_scales);
    for (int64_t i = 0; i < n; ++i) {
      RowAddress& address = addresses[static_cast<size_t>(i)];
      address = {to + i * format.row_bytes, to_scales + i * scale_bytes};
      if (rowwise) most[static_cast<size_t>(i)] = kMostE4m3 * load_row_scale(decode, address);
    }
    if (blocks) block_reach(to_scales, n * scale_bytes, args.global_scale, most.data());
    widen(args.from, from, n * head_dim, wide.data());
    decoder(decode, addresses.data(), n, reinterpret_cast<uint8_t*>(decoded.data()));
    Lanes lanes;
    (blocks ? add_blocks : add_rows)(wide.data(), decoded.data(), most.data(), n * head_dim / span, span,
                                     lanes);
    if (!add_lanes(lanes, sums)) {
      add_each(wide.data(), decoded.data(), most.data(), n * head_dim, span, row, head_dim, sums);
    }
  }
}

}  // namespace ngram_ple::cpu

// To bf16, fp16 or fp32: one rounding, to the largest finite number instead of infinity.
#include <algorithm>
#include <cstring>

#include "core/encoding.h"
#include "cpu/encode.h"
#include "cpu/multiversion.h"
#include "cpu/out_value.h"

namespace ngram_ple::cpu {
namespace {

template <class Out>
NGP_ALWAYS_INLINE void narrow(const float* NGP_RESTRICT values, int64_t count, float most,
                              uint8_t* NGP_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) {
    // rounding up from below the largest number's tie would give infinity
    const typename Out::Bits bits = Out::from_float(within(values[i], most));
    std::memcpy(out + static_cast<size_t>(i) * sizeof bits, &bits, sizeof bits);
  }
}

#define NGP_NARROW(name, Out)                                                                \
  NGP_MULTIVERSION void name(const float* values, int64_t count, float most, uint8_t* out) { \
    narrow<Out>(values, count, most, out);                                                   \
  }
NGP_NARROW(to_bf16, Bf16)
NGP_NARROW(to_fp16, Fp16)
NGP_NARROW(to_fp32, Fp32)
#undef NGP_NARROW

}  // namespace

void encode_plain(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows) {
  const auto narrow_to = args.to.format == Format::bf16   ? to_bf16
                         : args.to.format == Format::fp16 ? to_fp16
                                                          : to_fp32;
  const int64_t total = count * args.to.head_dim, width = args.to.row_bytes / args.to.head_dim;
  const int64_t from_bytes = args.from == Format::fp32 ? 4 : 2;
  alignas(64) float wide[kEncodeChunk];
  for (int64_t at = 0; at < total; at += kEncodeChunk) {
    const int64_t n = std::min(kEncodeChunk, total - at);
    widen(args.from, values + at * from_bytes, n, wide);
    narrow_to(wide, n, most_of(args.to.format), rows + at * width);
  }
}

}  // namespace ngram_ple::cpu

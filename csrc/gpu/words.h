// What memory is accessed in, and pairs of numbers: a part of runtime.h.
#pragma once

#include <cstdint>

namespace ngram_ple::gpu {

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t word[kWords];
};
using Bytes16 = Words<4>;
using Bytes8 = Words<2>;

struct Float2 {
  float low, high;
};

}  // namespace ngram_ple::gpu

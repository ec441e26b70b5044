// A read-only integer array of either width: indices come as int32 or int64, each input on its own.
#pragma once

#include <cstdint>

#include "core/portability.h"

namespace ngram_ple {

struct IntArray {
  const void* data;
  bool is_int64;

  NGP_HOST_DEVICE NGP_ALWAYS_INLINE int64_t operator[](int64_t i) const {
    return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

}  // namespace ngram_ple

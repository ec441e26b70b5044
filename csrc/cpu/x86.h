// Whether AVX2 paths are compiled, and whether this processor takes them (asked once, at run time).
// NGP_PORTABLE leaves them out, so that tests on x86-64 run what other processors do.
#pragma once

#if defined(__x86_64__) && !defined(NGP_PORTABLE)
#include <immintrin.h>
#define NGP_HAS_AVX2_PATH 1
#define NGP_AVX2 __attribute__((target("avx2")))
#endif

namespace ngram_ple::cpu {

inline bool has_avx2() {
#ifdef NGP_HAS_AVX2_PATH
  static const bool found = __builtin_cpu_supports("avx2");
  return found;
#else
  return false;
#endif
}

}  // namespace ngram_ple::cpu

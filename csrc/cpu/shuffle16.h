// A table of eight 16-bit values looked up by the low three bits of 16 codes at once: what makes 8- and 4-bit rows
// cheap to decode. AVX2 where the processor has it (asked for once, at run time), a loop elsewhere and where
// NGP_PORTABLE asks for it (so that tests on x86-64 run what other processors do).
#pragma once

#include <cstdint>

#if defined(__x86_64__) && !defined(NGP_PORTABLE)
#include <immintrin.h>
#define NGP_HAS_AVX2_PATH 1
#define NGP_AVX2 __attribute__((target("avx2")))

namespace ngram_ple::cpu {

inline bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2");
  return found;
}

// table[codes[i] & 7] for 16 codes held one a 16-bit lane.
NGP_AVX2 inline __m256i shuffle16(__m256i table, __m256i codes) {
  const __m256i entry = _mm256_and_si256(codes, _mm256_set1_epi16(7));
  // Entry e is the byte pair (2e, 2e + 1).
  const __m256i bytes = _mm256_add_epi16(_mm256_mullo_epi16(entry, _mm256_set1_epi16(0x0202)), _mm256_set1_epi16(0x0100));
  return _mm256_shuffle_epi8(table, bytes);
}

NGP_AVX2 inline __m256i load_table16(const uint16_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

}  // namespace ngram_ple::cpu
#endif

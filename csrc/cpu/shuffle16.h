// A table of eight 16-bit values looked up by the low three bits of 16 codes at once: what makes 8- and 4-bit
// rows cheap to decode.
#pragma once

#include <cstdint>

#include "cpu/x86.h"

#ifdef NGP_HAS_AVX2_PATH
namespace ngram_ple::cpu {

// table[codes[i] & 7] for 16 codes held one a 16-bit lane.
NGP_AVX2 inline __m256i shuffle16(__m256i table, __m256i codes) {
  const __m256i entry = _mm256_and_si256(codes, _mm256_set1_epi16(7));
  // Entry e is the byte pair (2e, 2e + 1).
  const __m256i bytes =
      _mm256_add_epi16(_mm256_mullo_epi16(entry, _mm256_set1_epi16(0x0202)), _mm256_set1_epi16(0x0100));
  return _mm256_shuffle_epi8(table, bytes);
}

NGP_AVX2 inline __m256i load_table16(const uint16_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

}  // namespace ngram_ple::cpu
#endif

#include "cpu/hash_heads.h"

#include <cstddef>

#include "core/fast_mod.h"
#include "cpu/x86.h"

namespace ngram_ple::cpu {

HashHeads::HashHeads(const NgramBatch& batch) : offsets_(batch.ngram_heads_offsets), use_avx2_(has_avx2()) {
  for (int32_t h = 0; h < batch.num_heads(); ++h) {
    const FloorMod modulus = make_floor_mod(batch.ngram_heads_vocab_sizes[h]);
    divisors_.push_back(modulus.divisor);
    reciprocals_.push_back(modulus.reciprocal);
    use_avx2_ = use_avx2_ && modulus.divisor < (int64_t{1} << 31);
  }
}

void HashHeads::ids(int64_t mixed, int32_t first, int32_t count, int64_t* out) const {
  int32_t done = 0;
  if (use_avx2_) {
    done = count / 4 * 4;
    ids_avx2(mixed, first, done, out);
  }
  for (int32_t k = done; k < count; ++k) {
    const size_t h = static_cast<size_t>(first + k);
    out[k] = floor_mod(mixed, {divisors_[h], reciprocals_[h]}) + offsets_[h];
  }
}

#ifdef NGP_HAS_AVX2_PATH
// core/fast_mod.h's arithmetic, four heads at a time, 64-bit products put together from 32-bit ones.
NGP_AVX2 void HashHeads::ids_avx2(int64_t mixed, int32_t first, int32_t count, int64_t* out) const {
  const __m256i low_half = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i x = _mm256_set1_epi64x(mixed), x_high = _mm256_srli_epi64(x, 32);
  const __m256i sign = _mm256_set1_epi64x(mixed >> 63);
  for (int32_t k = 0; k < count; k += 4) {
    const auto load = [&](const auto* array) NGP_AVX2 {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(array + first + k));
    };
    const __m256i divisor = load(divisors_.data()), reciprocal = load(reciprocals_.data());
    const __m256i reciprocal_high = _mm256_srli_epi64(reciprocal, 32);
    // The high word of x * reciprocal, unsigned. _mm256_mul_epu32 multiplies the low halves.
    const __m256i low = _mm256_srli_epi64(_mm256_mul_epu32(x, reciprocal), 32);
    const __m256i middle = _mm256_add_epi64(_mm256_mul_epu32(x_high, reciprocal), low);
    const __m256i carry =
        _mm256_add_epi64(_mm256_mul_epu32(x, reciprocal_high), _mm256_and_si256(middle, low_half));
    const __m256i high = _mm256_add_epi64(
        _mm256_add_epi64(_mm256_mul_epu32(x_high, reciprocal_high), _mm256_srli_epi64(middle, 32)),
        _mm256_srli_epi64(carry, 32));
    // reciprocal + 1 for a negative x: subtract the all-ones sign where it is set.
    const __m256i correction = _mm256_and_si256(_mm256_sub_epi64(reciprocal, sign), sign);
    const __m256i quotient = _mm256_sub_epi64(high, correction);
    // r = x - quotient * divisor fits 32 bits, since r < 2 d < 2^32: the low halves alone give it.
    const __m256i r = _mm256_and_si256(_mm256_sub_epi64(x, _mm256_mul_epu32(quotient, divisor)), low_half);
    const __m256i below = _mm256_cmpgt_epi64(divisor, r);
    const __m256i remainder = _mm256_sub_epi64(r, _mm256_andnot_si256(below, divisor));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm256_add_epi64(remainder, load(offsets_)));
  }
}
#else
void HashHeads::ids_avx2(int64_t, int32_t, int32_t, int64_t*) const {}
#endif

}  // namespace ngram_ple::cpu

// What encoding rows has changed, summed up.
#pragma once

#include <cstdint>

#include "cpu/encode.h"

namespace ngram_ple::cpu {

struct EncodeError {
  double squared_error = 0;  // sum of (value - decoded)^2 over finite values
  double squared_value = 0;  // sum of value^2
  float largest_error = 0;
  int64_t saturated = 0;          // finite values beyond what their scale reaches
  int64_t zeroed = 0;             // values other than zero that became zero
  int64_t not_finite = 0;         // NaN and infinite values, which count nowhere else
  int64_t first_not_finite = -1;  // row of the first one
};

// `encode`, and adds what it did to these rows. Decoded values are fp32.
void encode_measured(const EncodeArgs& args, const uint8_t* values, int64_t count, uint8_t* rows,
                     uint8_t* scales, EncodeError& sums);

}  // namespace ngram_ple::cpu

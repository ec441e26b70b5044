// 128-bit products, for the two places that need them (Miller-Rabin, reciprocals).
#pragma once

namespace ngram_ple {

__extension__ typedef __int128 int128_t;
__extension__ typedef unsigned __int128 uint128_t;

}  // namespace ngram_ple

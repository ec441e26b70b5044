// A digest of every output that a test has checked, a line each, in the file that NGRAM_PLE_OUTPUT_LOG names:
// two builds with equal logs have given the same bits.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace ngram_ple::test {

inline void log_output(const std::vector<uint8_t>& bytes) {
  static const char* const path = std::getenv("NGRAM_PLE_OUTPUT_LOG");
  if (path == nullptr) return;
  static std::ofstream file(path);
  uint64_t digest = 0xCBF29CE484222325;  // FNV-1a
  for (uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001B3;
  file << bytes.size() << " bytes " << std::hex << digest << std::dec << std::endl;
}

}  // namespace ngram_ple::test

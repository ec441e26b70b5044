#include <cstdlib>

#include "cpp/gpu/device.h"
#include "emulator/simt.h"

namespace ngram_ple::test {
namespace {

// NGRAM_PLE_EMULATED_WAVE=64 runs the tests as on a GPU with 64 lanes a wave, NGRAM_PLE_EMULATED_BULK=0 as on
// one without bulk copies.
const bool configured = [] {
  const char* lanes = std::getenv("NGRAM_PLE_EMULATED_WAVE");
  if (lanes != nullptr) simt::set_wave_size(static_cast<uint32_t>(std::atoi(lanes)));
  const char* bulk = std::getenv("NGRAM_PLE_EMULATED_BULK");
  if (bulk != nullptr) simt::set_bulk_copy(std::atoi(bulk) != 0);
  return true;
}();

}  // namespace

void* allocate(size_t bytes, Placement) { return std::malloc(bytes); }
void release(void* memory, Placement) { std::free(memory); }
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void copy_to_host(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace ngram_ple::test

#include <cstdlib>

#include "cpp/gpu/device.h"
#include "emulator/simt.h"

namespace ngram_ple::test {
namespace {

// NGRAM_PLE_EMULATED_WAVE=64 runs the tests as on a GPU with 64 lanes a wave.
const bool configured = [] {
  const char* lanes = std::getenv("NGRAM_PLE_EMULATED_WAVE");
  if (lanes != nullptr) simt::set_wave_size(static_cast<uint32_t>(std::atoi(lanes)));
  return true;
}();

}  // namespace

void* device_malloc(size_t bytes) { return std::malloc(bytes); }
void device_free(void* memory) { std::free(memory); }
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void copy_to_host(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace ngram_ple::test

// A stand-in for libtorch_cuda.so or libtorch_hip.so: the one function that ngram_ple looks up there.
#include <cstdint>

extern "C" __attribute__((visibility("default"))) int32_t
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream) {
  *stream = reinterpret_cast<void*>(uintptr_t{FAKE_TORCH_STREAM} + static_cast<uintptr_t>(device_index));
  return 0;
}

#include "cpp/gpu/device.h"
#include "gpu/host_runtime.h"

namespace ngram_ple::test {

void* allocate(size_t bytes, Placement placement) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  if (placement == Placement::pinned) return gpu::allocate_pinned(bytes);
  NGP_CALL(Malloc, &memory, bytes);
  return memory;
}
void release(void* memory, Placement placement) {
  if (memory == nullptr) return;
  if (placement == Placement::device) {
    (void)NGP_VENDOR(Free)(memory);
  } else {
    gpu::free_pinned(memory);
  }
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) NGP_CALL(Memcpy, to, from, bytes, NGP_VENDOR(MemcpyDefault));
}
void copy_to_host(void* to, const void* from, size_t bytes) {
  NGP_CALL(DeviceSynchronize);
  if (bytes != 0) NGP_CALL(Memcpy, to, from, bytes, NGP_VENDOR(MemcpyDefault));
}

}  // namespace ngram_ple::test

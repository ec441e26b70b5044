#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cpp/gpu/device.h"

namespace ngram_ple::test {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

}  // namespace

void* allocate(size_t bytes, Placement placement) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  if (placement == Placement::device) {
    check(cudaMalloc(&memory, bytes));
  } else {
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  }
  return memory;
}
void release(void* memory, Placement placement) {
  if (memory == nullptr) return;
  if (placement == Placement::device) {
    cudaFree(memory);
  } else {
    cudaFreeHost(memory);
  }
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
void copy_to_host(void* to, const void* from, size_t bytes) {
  check(cudaDeviceSynchronize());
  if (bytes != 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

}  // namespace ngram_ple::test

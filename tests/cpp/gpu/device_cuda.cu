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

void* device_malloc(size_t bytes) {
  void* memory = nullptr;
  if (bytes != 0) check(cudaMalloc(&memory, bytes));
  return memory;
}
void device_free(void* memory) { cudaFree(memory); }
void copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
void copy_to_host(void* to, const void* from, size_t bytes) {
  check(cudaDeviceSynchronize());
  if (bytes != 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace ngram_ple::test

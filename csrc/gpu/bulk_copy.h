// Copies from shared to global memory by a machine of their own (cp.async.bulk of sm_90 and later): one
// instruction a wave. A part of runtime.h. Addresses and sizes are multiples of 16.
#pragma once

#include "gpu/runtime.h"

namespace ngram_ple::gpu {

// Whether this device has such copies; the functions below do nothing where it has none.
NGP_DEVICE bool has_bulk_copy() {
#if defined(NGRAM_PLE_EMULATOR)
  return simt::has_bulk_copy();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}

// By every lane that wrote shared memory which bulk_store reads next; sync_wave() follows.
NGP_DEVICE void publish_to_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// By one lane; when it returns, the shared memory may be written again.
NGP_DEVICE void bulk_store([[maybe_unused]] uint8_t* to, [[maybe_unused]] const uint8_t* shared,
                           [[maybe_unused]] uint32_t bytes) {
#if defined(NGRAM_PLE_EMULATOR)
  simt::bulk_copy(to, shared, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
      "cp.async.bulk.commit_group;\n\t"
      "cp.async.bulk.wait_group.read 0;" ::"l"(to),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "r"(bytes)
      : "memory");
#endif
}

}  // namespace ngram_ple::gpu

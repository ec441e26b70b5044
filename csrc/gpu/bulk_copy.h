// Copies between global and shared memory by a machine of their own (cp.async.bulk of sm_90 and later): no
// registers, one instruction a row. A part of runtime.h. Addresses and sizes are multiples of 16.
#pragma once

#include "gpu/runtime.h"

namespace ngram_ple::gpu {

// Counts the bytes that arrive in shared memory, where it lies itself.
using ArrivalCount = uint64_t;

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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
NGP_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
#endif

// By one lane; sync_wave() follows.
NGP_DEVICE void init_arrivals([[maybe_unused]] ArrivalCount* count) {
#if defined(NGRAM_PLE_EMULATOR)
  *count = 0;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
      "fence.mbarrier_init.release.cluster;\n\t"
      "fence.proxy.async.shared::cta;" ::"r"(shared_address(count))
      : "memory");
#endif
}

// By one lane, once a round: so many bytes are about to be loaded.
NGP_DEVICE void expect_arrivals([[maybe_unused]] ArrivalCount* count, [[maybe_unused]] uint32_t bytes) {
#if defined(NGRAM_PLE_EMULATOR)
  *count += bytes;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(count)),
               "r"(bytes)
               : "memory");
#endif
}

NGP_DEVICE void bulk_load([[maybe_unused]] uint8_t* shared, [[maybe_unused]] const uint8_t* from,
                          [[maybe_unused]] uint32_t bytes, [[maybe_unused]] ArrivalCount* count) {
#if defined(NGRAM_PLE_EMULATOR)
  simt::bulk_copy(shared, from, bytes);
  *count -= bytes;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(count))
      : "memory");
#endif
}

// By every lane: waits for all bytes of round `parity` (0, 1, 0, 1, ...).
NGP_DEVICE void await_arrivals([[maybe_unused]] ArrivalCount* count, [[maybe_unused]] uint32_t parity) {
#if defined(NGRAM_PLE_EMULATOR)
  simt::sync_wave();
  if (*count != 0) simt::fail("a wave waits for bytes that nobody loads");
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n"
      "waiting:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra waiting;\n\t"
      "}" ::"r"(shared_address(count)),
      "r"(parity)
      : "memory");
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
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
#endif
}

}  // namespace ngram_ple::gpu

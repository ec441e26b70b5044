// runtime.h on CUDA: global and shared memory.
#pragma once

#include <cstring>

#include "gpu/words.h"

namespace ngram_ple::gpu {

// --- Global memory ----------------------------------------------------------------------------------
template <class T>
NGP_DEVICE T load_once(const uint8_t* from) {
  T value;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                 : "l"(from));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.word[0]), "=r"(value.word[1])
                 : "l"(from));
  } else if constexpr (sizeof(T) == 4) {
    const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(from));
    memcpy(&value, &word, sizeof value);
  } else {
    value = __ldg(reinterpret_cast<const T*>(from));
  }
  return value;
}

NGP_DEVICE uint32_t load_word(const uint8_t* from) { return __ldg(reinterpret_cast<const uint32_t*>(from)); }

template <class T>
NGP_DEVICE void store_once(uint8_t* to, T value) {
  if constexpr (sizeof(T) == 16) {
    __stcs(reinterpret_cast<uint4*>(to),
           make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
  } else if constexpr (sizeof(T) == 8) {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(value.word[0], value.word[1]));
  } else {
    __stcs(reinterpret_cast<T*>(to), value);
  }
}

// --- Shared memory ----------------------------------------------------------------------------------
NGP_DEVICE uint8_t* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<uint8_t*>(shared_words);
}
template <class T>
NGP_DEVICE T load_shared(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
template <class T>
NGP_DEVICE void store_shared(uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
using SharedAddress = uint32_t;
NGP_DEVICE SharedAddress shared_address(const uint8_t* shared) {
  uint32_t address;
  asm volatile("mov.u32 %0, %1;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))));
  return address;
}
template <int kCount>
NGP_DEVICE void load_to_shared(SharedAddress to, uint32_t step, const uint8_t* const (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (from[i] == nullptr) continue;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + step * i), "l"(from[i]) : "memory");
  }
}
NGP_DEVICE void await_loads() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
using SharedAddress = uint8_t*;
NGP_DEVICE SharedAddress shared_address(uint8_t* shared) { return shared; }
template <int kCount>
NGP_DEVICE void load_to_shared(SharedAddress to, uint32_t step, const uint8_t* const (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (from[i] != nullptr) store_shared(to + step * i, load_once<Bytes16>(from[i]));
  }
}
NGP_DEVICE void await_loads() {}
#endif

// --- Bulk copies: cp.async.bulk of sm_90 and later --------------------------------------------------
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
NGP_DEVICE bool has_bulk_copy() { return true; }
NGP_DEVICE void publish_to_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
NGP_DEVICE void bulk_store(uint8_t* to, const uint8_t* shared, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
      "cp.async.bulk.commit_group;\n\t"
      "cp.async.bulk.wait_group.read 0;" ::"l"(to),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "r"(bytes)
      : "memory");
}
#else
NGP_DEVICE bool has_bulk_copy() { return false; }
NGP_DEVICE void publish_to_bulk() {}
NGP_DEVICE void bulk_store(uint8_t*, const uint8_t*, uint32_t) {}
#endif

}  // namespace ngram_ple::gpu

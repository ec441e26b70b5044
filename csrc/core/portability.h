// What differs between the compilers that read csrc/core: nothing but these few words.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define NGP_HOST_DEVICE __host__ __device__
#else
#define NGP_HOST_DEVICE
#endif

#if defined(__GNUC__) || defined(__clang__)
#define NGP_ALWAYS_INLINE inline __attribute__((always_inline))
#define NGP_RESTRICT __restrict__
#else
#define NGP_ALWAYS_INLINE inline
#define NGP_RESTRICT
#endif

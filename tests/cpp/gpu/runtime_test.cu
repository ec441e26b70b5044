// Every word of csrc/gpu/runtime.h, on the device (or the emulator) against core's arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpp/gpu/batches.h"
#include "gpu/hash.cuh"

namespace ngram_ple::test {
namespace {

using namespace ngram_ple::gpu;

constexpr int kThreads = 128;

// Runs kernel(in, count, out) with a thread an element and returns out.
template <class In, class Out>
std::vector<Out> map(void (*kernel)(const In*, int64_t, Out*), const std::vector<In>& in) {
  const DeviceBuffer device_in(in), device_out(std::vector<Out>(in.size()));
  const int64_t count = static_cast<int64_t>(in.size());
  launch("test", kernel, {(count + kThreads - 1) / kThreads, kThreads}, nullptr,
         static_cast<const In*>(device_in.as<In>()), count, device_out.as<Out>());
  return device_out.template download<Out>();
}

NGP_DEVICE int64_t my_index() {
  return static_cast<int64_t>(block_index()) * block_threads() + thread_index();
}

std::vector<float> many_floats() {
  std::vector<float> values{0.0f,     -0.0f,    INFINITY,   -INFINITY, NAN,
                            65504.0f, 65520.0f, 3.3895e38f, 1e-45f,    6e-8f};
  Random random(1);
  while (values.size() < 20000) values.push_back(float_from_bits(static_cast<uint32_t>(random())));
  // Ties and subnormals of fp16.
  while (values.size() < 30000) values.push_back(std::ldexp(static_cast<float>(random() % 8192), -28));
  return values;
}

template <class T>
bool same_or_nan(T got, T wanted, bool got_nan, bool wanted_nan) {
  return wanted_nan ? got_nan : got == wanted;
}

NGP_KERNEL(kThreads) places_kernel(const uint32_t*, int64_t, int64_t* out) {
  out[my_index()] = (wave_index() * wave_size() + lane_index()) * 1000000 + num_waves() * wave_size();
}

TEST(Runtime, PlacesCoverTheGrid) {
  const auto got = map(places_kernel, std::vector<uint32_t>(3 * kThreads));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<int64_t>(i * 1000000 + 3 * kThreads));
}

NGP_KERNEL(kThreads) mark_kernel(int64_t blocks, uint8_t* marks) {
  if (thread_index() == 0 && block_index() < blocks) marks[block_index()] += 1;
}

// HIP lays so many blocks out in lines.
TEST(Runtime, MillionsOfBlocksAreEachThereOnce) {
#if defined(NGRAM_PLE_EMULATED)
  GTEST_SKIP() << "minutes on the emulator";
#endif
  const int64_t blocks = (int64_t{1} << 22) + 5;
  const DeviceBuffer marks(std::vector<uint8_t>(static_cast<size_t>(blocks)));
  launch("test", mark_kernel, {blocks, kThreads}, nullptr, blocks, marks.data());
  const auto got = marks.download<uint8_t>();
  EXPECT_EQ(std::count(got.begin(), got.end(), 1), blocks);
}

NGP_KERNEL(kThreads) shuffle_kernel(const int64_t* in, int64_t, int64_t* out) {
  out[my_index()] = shuffle(in[my_index()], (lane_index() * 7 + 3) % wave_size());
}
NGP_KERNEL(kThreads) wave_size_kernel(const uint32_t*, int64_t, uint32_t* out) {
  out[my_index()] = wave_size();
}

TEST(Runtime, ShuffleMovesAllBits) {
  const size_t wave = map(wave_size_kernel, std::vector<uint32_t>(kThreads))[0];
  Random random(2);
  std::vector<int64_t> in(2 * kThreads);
  for (int64_t& value : in) value = static_cast<int64_t>(random());
  const auto got = map(shuffle_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(got[i], in[i / wave * wave + (i % wave * 7 + 3) % wave]);
}

NGP_KERNEL(kThreads) ballot_kernel(const uint32_t* in, int64_t, uint64_t* out) {
  const uint64_t bits = ballot(in[my_index()] % 3 == 0);
  out[my_index()] = bits * 256 + count_ones(bits);
}

TEST(Runtime, BallotAndCount) {
  const size_t wave = map(wave_size_kernel, std::vector<uint32_t>(kThreads))[0];
  Random random(3);
  std::vector<uint32_t> in(2 * kThreads);
  for (uint32_t& value : in) value = static_cast<uint32_t>(random());
  const auto got = map(ballot_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) {
    uint64_t bits = 0, ones = 0;
    for (size_t lane = 0; lane < wave; ++lane) {
      const bool yes = in[i / wave * wave + lane] % 3 == 0;
      bits |= static_cast<uint64_t>(yes) << lane;
      ones += yes;
    }
    EXPECT_EQ(got[i], bits * 256 + ones);
  }
}

template <class T>
NGP_KERNEL(kThreads)
copy_kernel(const T* in, int64_t count, T* out) {
  if (my_index() < count) {
    store_once(reinterpret_cast<uint8_t*>(out + my_index()),
               load_once<T>(reinterpret_cast<const uint8_t*>(in + my_index())));
  }
}

template <class T>
void check_copy() {
  Random random(4);
  std::vector<T> in(1000);
  for (T& value : in) {
    const uint64_t bits[2] = {random(), random()};
    std::memcpy(&value, bits, sizeof value);
  }
  const auto got = map(copy_kernel<T>, in);
  EXPECT_EQ(std::memcmp(got.data(), in.data(), in.size() * sizeof(T)), 0);
}

TEST(Runtime, LoadsAndStoresOfEveryWidth) {
  check_copy<Bytes16>();
  check_copy<Bytes8>();
  check_copy<uint32_t>();
  check_copy<uint16_t>();
  check_copy<uint8_t>();
}

NGP_KERNEL(kThreads) e4m3_kernel(const uint16_t* in, int64_t count, Float2* out) {
  if (my_index() < count) out[my_index()] = e4m3x2_to_floats(in[my_index()]);
}
NGP_KERNEL(kThreads) fp16_kernel(const uint32_t* in, int64_t count, Float2* out) {
  if (my_index() < count) out[my_index()] = fp16x2_to_floats(in[my_index()]);
}
NGP_KERNEL(kThreads) bf16_kernel(const uint32_t* in, int64_t count, Float2* out) {
  if (my_index() < count) out[my_index()] = bf16x2_to_floats(in[my_index()]);
}

void expect_float(float got, float wanted) {
  EXPECT_TRUE(same_or_nan(bits_of(got), bits_of(wanted), std::isnan(got), std::isnan(wanted)))
      << got << " " << wanted;
}

TEST(Runtime, EveryPairOfE4m3Codes) {
  std::vector<uint16_t> in;
  for (uint32_t pair = 0; pair < 65536; pair += 7) in.push_back(static_cast<uint16_t>(pair));
  const auto got = map(e4m3_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) {
    expect_float(got[i].low, e4m3_to_float(static_cast<uint8_t>(in[i])));
    expect_float(got[i].high, e4m3_to_float(static_cast<uint8_t>(in[i] >> 8)));
  }
}

TEST(Runtime, EveryHalf) {
  std::vector<uint32_t> in;
  for (uint32_t half = 0; half < 65536; ++half) in.push_back(half | (half * 40503u) << 16);
  const auto fp16 = map(fp16_kernel, in), bf16 = map(bf16_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) {
    const uint16_t low = static_cast<uint16_t>(in[i]), high = static_cast<uint16_t>(in[i] >> 16);
    expect_float(fp16[i].low, fp16_to_float(low));
    expect_float(fp16[i].high, fp16_to_float(high));
    expect_float(bf16[i].low, bf16_to_float(low));
    expect_float(bf16[i].high, bf16_to_float(high));
  }
}

NGP_KERNEL(kThreads) to_fp16_kernel(const float* in, int64_t count, uint32_t* out) {
  if (my_index() < count) out[my_index()] = floats_to_fp16x2({in[my_index()], -in[my_index()]});
}
NGP_KERNEL(kThreads) to_bf16_kernel(const float* in, int64_t count, uint32_t* out) {
  if (my_index() < count) out[my_index()] = floats_to_bf16x2({in[my_index()], -in[my_index()]});
}

TEST(Runtime, FloatsRoundToNearestEven) {
  const auto in = many_floats();
  const auto fp16 = map(to_fp16_kernel, in), bf16 = map(to_bf16_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) {
    for (int high = 0; high < 2; ++high) {
      const float value = high ? -in[i] : in[i];
      const uint16_t half = static_cast<uint16_t>(fp16[i] >> (16 * high)),
                     brain = static_cast<uint16_t>(bf16[i] >> (16 * high));
      EXPECT_TRUE(same_or_nan(half, float_to_fp16(value), (half & 0x7FFF) > 0x7C00, std::isnan(value)))
          << value;
      EXPECT_TRUE(same_or_nan(brain, float_to_bf16(value), (brain & 0x7FFF) > 0x7F80, std::isnan(value)))
          << value;
    }
  }
}

struct Dividend {
  int64_t x, d;
};
NGP_KERNEL(kThreads) floor_mod_kernel(const Dividend* in, int64_t count, int64_t* out) {
  if (my_index() >= count) return;
  const int64_t divisor[] = {in[my_index()].d};
  int64_t remainder[1];
  floor_mods(in[my_index()].x, divisor, remainder);
  out[my_index()] = remainder[0];
}

TEST(Runtime, FloorModIsExact) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> divisors{
      1, 2, 3, 8191, 16383, 16384, 16385, 20000003, int64_t{1} << 62, (int64_t{1} << 62) - 1};
  Random random(5);
  for (int bit = 13; bit < 62; ++bit) {
    for (int i = 0; i < 20; ++i) divisors.push_back(pick(random, int64_t{1} << bit, (int64_t{2} << bit) - 1));
  }
  std::vector<Dividend> in;
  for (int64_t d : divisors) {
    for (int64_t x : {int64_t{0}, int64_t{-1}, kMin, kMin + 1, kMax, d, -d, d - 1, 1 - d})
      in.push_back({x, d});
    for (int i = 0; i < 40; ++i) {
      const int64_t x = static_cast<int64_t>(random()) >> (random() % 40);
      // Multiples of the divisor and their neighbours, where a quotient that is off by one shows.
      for (int64_t near = -1; near <= 1; ++near)
        in.push_back(
            {static_cast<int64_t>(static_cast<uint64_t>(x / d * d) + static_cast<uint64_t>(near)), d});
      in.push_back({x, d});
    }
  }
  const auto got = map(floor_mod_kernel, in);
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t r = in[i].x % in[i].d;
    EXPECT_EQ(got[i], r < 0 ? r + in[i].d : r) << in[i].x << " mod " << in[i].d;
  }
}

}  // namespace
}  // namespace ngram_ple::test

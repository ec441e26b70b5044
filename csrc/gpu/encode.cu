// Rows of numbers to stored rows. A thread takes eight values at a time; in nvfp4 two neighbours share a
// block, in fp8-rowwise a few lanes share a row, each with several times eight values of it on their way at
// once, so that few lanes do what is done once a row. No value is read from memory twice but those of rows
// longer than a wave holds.
#include "gpu/encode_values.cuh"
#include "gpu/gather_launch.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kRounds = 4;  // what a thread does before its first value pays for so many steps of its loop

NGP_DEVICE int64_t chunk_index() {
  return static_cast<int64_t>(block_index()) * block_threads() + thread_index();
}
NGP_DEVICE int64_t num_threads() { return static_cast<int64_t>(grid_blocks()) * block_threads(); }
NGP_DEVICE int values_of(int64_t chunk, int64_t total) {
  const int64_t left = total - chunk * kValues;
  return left < kValues ? static_cast<int>(left) : kValues;
}
template <class Numbers>
NGP_DEVICE Eight load(const Numbers& numbers, int64_t chunk, int64_t total) {
  return numbers.floats(numbers.read(chunk * kValues, values_of(chunk, total)));
}

// The rows of a wave, `lanes` of its lanes (a power of two) for each. Lane k of them has chunks k, k + lanes,
// ... and holds the first kHeld; zeros where there is no row or no chunk.
template <class Numbers>
struct Rows {
  static constexpr int kHeld = Numbers::kWide ? 5 : 1;
  using Held = Eight[kHeld];
  Numbers numbers;
  int64_t num_rows, head_dim;
  uint32_t lanes;

  NGP_DEVICE int64_t chunks() const { return (head_dim + kValues - 1) / kValues; }
  NGP_DEVICE int64_t step() const { return num_waves() * (wave_size() / lanes); }
  NGP_DEVICE int64_t first() const { return wave_index() * (wave_size() / lanes); }
  NGP_DEVICE int64_t row(int64_t first) const { return first + lane_index() / lanes; }
  NGP_DEVICE int64_t chunk(int i) const { return lane_index() % lanes + i * static_cast<int64_t>(lanes); }
  NGP_DEVICE bool has(int64_t row, int64_t chunk) const { return row < num_rows && chunk < chunks(); }
  NGP_DEVICE bool is_first(int64_t row) const { return lane_index() % lanes == 0 && row < num_rows; }

  NGP_DEVICE typename Numbers::Raw read(int64_t row, int64_t chunk) const {
    if (!has(row, chunk)) return {};
    return numbers.read(row * head_dim + chunk * kValues, values_of(chunk, head_dim));
  }
  NGP_DEVICE void load(int64_t row, Held& held) const {
    typename Numbers::Raw raw[kHeld];  // all of it asked for before any is looked at
#pragma unroll
    for (int i = 0; i < kHeld; ++i) raw[i] = read(row, chunk(i));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = numbers.floats(raw[i]);
  }
  // `visit` the chunks of this lane that are not held.
  template <class Visit>
  NGP_DEVICE void beyond(int64_t row, const Visit& visit) const {
    for (int64_t c = chunk(kHeld); c < chunks(); c += lanes) {
      Eight one[1] = {numbers.floats(read(row, c))};
      visit(c, one);
    }
  }
  // The largest of a row's bits in each of its lanes. All lanes of the wave come here together.
  NGP_DEVICE uint32_t largest(uint32_t bits) const {
    for (uint32_t apart = lanes / 2; apart > 0; apart /= 2)
      bits = larger(bits, shuffle(bits, lane_index() ^ apart));
    return bits;
  }
};

template <class Numbers>
NGP_KERNEL(kThreads)
row_amax_kernel(Rows<Numbers> rows, bool finite_only, float* out) {
  for (int64_t first = rows.first(); first < rows.num_rows; first += rows.step()) {
    const int64_t row = rows.row(first);
    typename Rows<Numbers>::Held held;
    rows.load(row, held);
    uint32_t most = finite_only ? drop_nan(held) : largest_bits(held);
    rows.beyond(row, [&](int64_t, auto& one) {
      most = larger(most, finite_only ? drop_nan(one) : largest_bits(one));
    });
    most = rows.largest(most);
    if (rows.is_first(row)) store_once(reinterpret_cast<uint8_t*>(out + row), most);
  }
}

template <class Numbers>
NGP_KERNEL(kThreads)
encode_plain_kernel(Numbers numbers, EncodeView view, int64_t total) {
  const int64_t to_bytes = view.to.format == Format::fp32 ? 4 : 2;
  const float most = most_of(view.to.format);
  for (int64_t chunk = chunk_index(); chunk * kValues < total; chunk += num_threads()) {
    Eight eight = load(numbers, chunk, total);
#pragma unroll
    for (float& value : eight.value) value = within(value, most);
    uint8_t* to = view.rows + chunk * kValues * to_bytes;
    Bytes16 words[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Float2 pair{eight.value[2 * i], eight.value[2 * i + 1]};
      if (view.to.format == Format::fp32) {
        words[i / 2].word[2 * i % 4] = bits_of(pair.low);
        words[i / 2].word[2 * i % 4 + 1] = bits_of(pair.high);
      } else {
        words[0].word[i] = view.to.format == Format::bf16 ? floats_to_bf16x2(pair) : floats_to_fp16x2(pair);
      }
    }
    const int bytes = values_of(chunk, total) * static_cast<int>(to_bytes);
    store_bytes<Numbers::kWide>(to, words[0], bytes < 16 ? bytes : 16);
    if (bytes > 16) store_bytes<Numbers::kWide>(to + 16, words[1], bytes - 16);
  }
}

template <class Numbers>
NGP_KERNEL(kThreads)
encode_fp8_kernel(Numbers numbers, EncodeView view, int64_t total) {
  const float factor = row_factor(*view.global_scale);
  for (int64_t chunk = chunk_index(); chunk * kValues < total; chunk += num_threads()) {
    Eight one[1] = {load(numbers, chunk, total)};
    drop_nan(one);
    store_bytes<Numbers::kWide>(view.rows + chunk * kValues, to_e4m3(one[0], factor),
                                values_of(chunk, total));
  }
}

template <class Numbers>
NGP_KERNEL(kThreads)
encode_fp8_rowwise_kernel(Rows<Numbers> rows, EncodeView view) {
  constexpr bool kWide = Numbers::kWide;
  const auto store = [&](int64_t row, int64_t chunk, const Eight& eight, float factor) {
    if (!rows.has(row, chunk)) return;
    store_bytes<kWide>(view.rows + row * rows.head_dim + chunk * kValues, to_e4m3(eight, factor),
                       values_of(chunk, rows.head_dim));
  };
  for (int64_t first = rows.first(); first < rows.num_rows; first += rows.step()) {
    const int64_t row = rows.row(first);
    typename Rows<Numbers>::Held held;
    rows.load(row, held);
    uint32_t most = drop_nan(held);
    rows.beyond(row, [&](int64_t, auto& one) { most = larger(most, drop_nan(one)); });

    const float scale = row_scale_of(float_from_bits(rows.largest(most)), view.scale_is_bf16);
    const float factor = row_factor(scale);
#pragma unroll
    for (int i = 0; i < rows.kHeld; ++i) store(row, rows.chunk(i), held[i], factor);
    rows.beyond(row, [&](int64_t chunk, auto& one) {
      drop_nan(one);
      store(row, chunk, one[0], factor);
    });
    if (!rows.is_first(row)) continue;
    if (view.scale_is_bf16) {
      store_bytes<kWide>(view.scales + 2 * row, float_to_bf16(scale), 2);
    } else {
      store_bytes<kWide>(view.scales + 4 * row, bits_of(scale), 4);
    }
  }
}

// Chunks come in pairs, a pair in neighbouring lanes.
template <class Numbers>
NGP_KERNEL(kThreads)
encode_nvfp4_kernel(Numbers numbers, EncodeView view, int64_t chunks) {
  const float global_scale = at_least(*view.global_scale, kLeastScale);
  const float per_scale = per_block_scale(global_scale);
  const int64_t all = (chunks + wave_size() - 1) / wave_size() * wave_size();  // lanes shuffle together
  for (int64_t chunk = chunk_index(); chunk < all; chunk += num_threads()) {
    const bool is_one = chunk < chunks;
    Eight one[1] = {};
    if (is_one) one[0] = load(numbers, chunk, chunks * kValues);
    const uint32_t mine = drop_nan(one), other = shuffle(mine, lane_index() ^ 1);
    if (!is_one) continue;
    const float amax = float_from_bits(larger(mine, other));
    const float wanted = at_least(amax * per_scale, kLeastBlockScale);
    const uint8_t scale = static_cast<uint8_t>(floats_to_e4m3x2({wanted, 0.0f}));
    const float factor = 1.0f / (e4m3x2_to_floats(scale).low * global_scale);
    store_bytes<Numbers::kWide>(view.rows + chunk * (kValues / 2), to_e2m1(one[0], factor), kValues / 2);
    if (chunk % 2 == 0) store_once(view.scales + chunk / 2, scale);
  }
}

// Whether eight values at a time can be read and written whole.
bool is_wide(const EncodeView& view, int64_t total) {
  const bool rowwise = view.to.format == Format::fp8_rowwise;
  const int64_t written = view.to.format == Format::nvfp4 ? 4 : (view.to.format >= Format::fp8 ? 8 : 16);
  return total % kValues == 0 && common_alignment(address(view.values)) == 16 &&
         common_alignment(address(view.rows)) >= written &&
         (!rowwise || (view.to.head_dim % kValues == 0 &&
                       common_alignment(address(view.scales)) >= (view.scale_is_bf16 ? 2 : 4)));
}

Grid grid_of(int64_t threads) { return {(threads + kThreads - 1) / kThreads, kThreads}; }

// The fewest lanes, from four up, that hold a row; as many as a wave has where those do not.
template <class Numbers>
Rows<Numbers> rows_of(const Numbers& numbers, int64_t num_rows, int64_t head_dim) {
  Rows<Numbers> rows{numbers, num_rows, head_dim, 4};
  while (rows.lanes < device_wave_size() && rows.lanes * rows.kHeld * kValues < head_dim) rows.lanes *= 2;
  return rows;
}

}  // namespace

void row_amax(Format from, const uint8_t* values, int64_t num_rows, int64_t head_dim, bool finite_only,
              float* out, Stream stream) {
  const bool wide = head_dim % kValues == 0 && common_alignment(address(values)) == 16;
  with_numbers(from, values, wide, [&](auto numbers) {
    const auto rows = rows_of(numbers, num_rows, head_dim);
    launch("row_amax", row_amax_kernel<decltype(numbers)>, grid_of(num_rows * rows.lanes), stream, rows,
           finite_only, out);
  });
}

void encode(const EncodeView& view, int64_t num_rows, Stream stream) {
  const int64_t total = num_rows * view.to.head_dim, chunks = (total + kValues - 1) / kValues;
  const Grid flat = grid_of((chunks + kRounds - 1) / kRounds);
  with_numbers(view.from, view.values, is_wide(view, total), [&](auto numbers) {
    using Numbers = decltype(numbers);
    switch (view.to.format) {
      case Format::fp8:
        return launch("encode", encode_fp8_kernel<Numbers>, flat, stream, numbers, view, total);
      case Format::fp8_rowwise: {
        const auto rows = rows_of(numbers, num_rows, view.to.head_dim);
        return launch("encode", encode_fp8_rowwise_kernel<Numbers>, grid_of(num_rows * rows.lanes), stream,
                      rows, view);
      }
      case Format::nvfp4:
        return launch("encode", encode_nvfp4_kernel<Numbers>, flat, stream, numbers, view, chunks);
      default:
        return launch("encode", encode_plain_kernel<Numbers>, flat, stream, numbers, view, total);
    }
  });
}

}  // namespace ngram_ple::gpu

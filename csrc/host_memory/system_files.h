// The few files by which Linux tells of memory and devices. C's streams: C++'s need one libstdc++ in the
// process, which an extension module cannot be sure of.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

namespace ngram_ple {

// Calls take(line) for each line until it returns true.
template <class Take>
void for_each_line(const std::string& path, const Take& take) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return;
  char line[4096];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (take(static_cast<const char*>(line))) break;
  }
  std::fclose(file);
}

// The first line, without its end; empty where there is no such file.
inline std::string first_line(const std::string& path) {
  std::string text;
  for_each_line(path, [&](const char* line) {
    text = line;
    return true;
  });
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// The number at the beginning of a text, if one is there.
inline std::optional<int64_t> leading_number(const std::string& text) {
  char* end = nullptr;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str()) return std::nullopt;
  return number;
}

// The number after `key` in a file of "key number" lines.
inline std::optional<int64_t> number_after(const std::string& path, const std::string& key) {
  std::optional<int64_t> number;
  for_each_line(path, [&](const char* line) {
    const std::string text(line);
    if (text.compare(0, key.size(), key) != 0 || text.size() == key.size() || text[key.size()] != ' ') {
      return false;
    }
    number = leading_number(text.substr(key.size()));
    return true;
  });
  return number;
}

}  // namespace ngram_ple

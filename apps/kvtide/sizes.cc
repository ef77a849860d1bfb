#include "apps/kvtide/sizes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace kvtide::app {

base::Result<int64_t> parse_bytes(std::string_view text) {
  const auto bad = [&](const char* why) {
    return base::error(base::Code::kInvalidArgument, "'" + std::string(text) + "' " + why + "; write a size such as 512M, 4G or 0");
  };
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || !std::isfinite(value)) return bad("is no size");
  if (value < 0) return bad("is below zero");
  std::string unit;
  for (const char c : std::string_view(end, static_cast<size_t>(text.data() + text.size() - end))) {
    if (c != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  static constexpr std::string_view kUnits = "kmgt";
  int shift = 0;
  if (!unit.empty() && unit != "b") {
    const size_t at = kUnits.find(unit.front());
    const std::string_view rest = std::string_view(unit).substr(1);
    if (at == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) return bad("has an unknown unit");
    shift = 10 * (static_cast<int>(at) + 1);
  }
  const double bytes = value * std::ldexp(1.0, shift);
  if (bytes >= 9.0e18) return bad("is too large");
  return static_cast<int64_t>(std::llround(bytes));
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; std::abs(value) >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace kvtide::app

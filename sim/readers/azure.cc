#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "sim/readers/build.h"
#include "sim/readers/csv_reader.h"
#include "sim/readers/readers.h"

namespace kvtide::sim {
namespace {

constexpr int32_t kBlockTokens = 64;
constexpr std::array<std::string_view, 3> kColumns = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
enum Column : size_t { kTimestamp, kContextTokens, kGeneratedTokens };

/// Passes the digits at the start of `text` and the `after` behind them ('\0': nothing).
bool take_number(std::string_view& text, int& value, char after) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (after == '\0') return true;
  if (text.empty() || text.front() != after) return false;
  text.remove_prefix(1);
  return true;
}

/// "2023-11-16 18:17:03.9799600", with up to nine digits behind the point or none.
bool parse_timestamp(std::string_view text, base::TimeNs& at_ns) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take_number(text, year, '-') || !take_number(text, month, '-') || !take_number(text, day, ' ')) return false;
  if (!take_number(text, hour, ':') || !take_number(text, minute, ':') || !take_number(text, second, '\0')) return false;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (year < 1970 || year > 2200 || month > 12 || day > 31 || !date.ok() || hour > 23 || minute > 59 || second > 60) return false;
  base::TimeNs fraction_ns = 0;
  if (!text.empty()) {
    if (text.front() != '.' || text.size() < 2 || text.size() > 10) return false;
    base::DurationNs unit_ns = base::kSecond;
    for (const char digit : text.substr(1)) {
      if (digit < '0' || digit > '9') return false;
      fraction_ns += (unit_ns /= 10) * (digit - '0');
    }
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  at_ns = (((days * 24 + hour) * 60 + minute) * 60 + second) * base::kSecond + fraction_ns;
  return true;
}

bool parse_row(CsvReader& rows, Trace& trace, TraceRequest& request) {
  int64_t prompt_tokens = 0;
  int64_t reply_tokens = 0;
  if (!parse_timestamp(rows.field(kTimestamp), request.at_ns)) return rows.fail(kTimestamp, "expected YYYY-MM-DD hh:mm:ss.fffffff");
  if (!rows.read_int(kContextTokens, prompt_tokens, 0, INT32_MAX)) return false;
  if (!rows.read_int(kGeneratedTokens, reply_tokens, 0, INT32_MAX)) return false;
  request.prompt_tokens = static_cast<int32_t>(prompt_tokens);
  request.reply_tokens = static_cast<int32_t>(reply_tokens);
  const int32_t blocks = request.prompt_tokens / kBlockTokens;
  if (trace.parent.size() + static_cast<size_t>(blocks) > kNodesMax) return rows.fail(kContextTokens, "too many blocks in the file");
  for (int32_t i = 0; i < blocks; ++i) request.leaf = add_node(trace, request.leaf);
  return true;
}

}  // namespace

base::Result<Trace> read_azure(const std::filesystem::path& csv) {
  auto rows = CsvReader::open(csv, kColumns);
  if (!rows) return tl::make_unexpected(rows.error());
  Trace trace;
  trace.name = "azure";
  trace.block_tokens = kBlockTokens;
  trace.absolute = true;
  base::TimeNs start_ns = INT64_MAX;
  while (rows->next()) {
    TraceSession session;
    TraceRequest request;
    if (!parse_row(*rows, trace, request)) break;
    if (trace.sessions.size() >= INT32_MAX) return base::error(base::Code::kResourceExhausted, csv.string() + ": too many requests");
    start_ns = std::min(start_ns, request.at_ns);
    session.number = static_cast<int32_t>(trace.sessions.size());
    session.name = std::to_string(session.number);
    session.requests.push_back(request);
    trace.sessions.push_back(std::move(session));
  }
  if (!rows->status()) return tl::make_unexpected(rows->status().error());
  for (TraceSession& session : trace.sessions) session.requests.front().at_ns -= start_ns;
  return trace;
}

}  // namespace kvtide::sim

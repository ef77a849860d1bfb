#include "apps/kvtide/replay_html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <utility>
#include <vector>

namespace kvtide::app {
namespace {

constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 44;
constexpr std::array<const char*, 6> kColours{"#7a7f87", "#2f7ed8", "#12945b", "#c8553d", "#8e5ea2", "#b58900"};

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 512> line{};
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(line.data(), line.size(), pattern, arguments);
  va_end(arguments);
  return line.data();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

using Point = std::pair<double, double>;
struct Line {
  std::string label;
  size_t colour = 0;
  std::vector<Point> points;
};

/// A round step so that about five of them span `range`.
double tick_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string number(double v) { return format(std::abs(v) >= 100 || v == std::floor(v) ? "%.0f" : "%.3g", v); }

class Plot {
 public:
  Plot(std::string title, std::string x_label, std::string y_label)
      : title_(std::move(title)), x_label_(std::move(x_label)), y_label_(std::move(y_label)) {}

  Plot& log_x() {
    log_x_ = true;
    return *this;
  }
  Plot& add(Line line) {
    lines_.push_back(std::move(line));
    return *this;
  }

  std::string svg() const {
    double x0 = 1e300, x1 = -1e300, y1 = 0;
    for (const Line& line : lines_) {
      for (const auto& [x, y] : line.points) {
        x0 = std::min(x0, at_x(x));
        x1 = std::max(x1, at_x(x));
        y1 = std::max(y1, y);
      }
    }
    if (x0 > x1) return {};
    if (x1 - x0 < 1e-9) x0 -= 0.5, x1 += 0.5;
    if (y1 <= 0) y1 = 1;
    const auto px = [&](double x) { return kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - kRight); };
    const auto py = [&](double y) { return kHeight - kBottom - y / (y1 * 1.05) * (kHeight - kTop - kBottom); };
    std::string out = format("<svg viewBox='0 0 %.0f %.0f' role='img'>", kWidth, kHeight);
    out += format("<text x='%.0f' y='18' class='t'>", kLeft) + escaped(title_) + "</text>";
    const double step = tick_step(y1);
    for (double y = 0; y <= y1 * 1.05; y += step) {
      out += format("<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' class='g'/><text x='%.1f' y='%.1f' class='y'>%s</text>", kLeft,
                    kWidth - kRight, py(y), py(y), kLeft - 6, py(y) + 4, number(y).c_str());
    }
    for (const double x : x_ticks(x0, x1)) {
      out += format("<text x='%.1f' y='%.1f' class='x'>%s</text>", px(x), kHeight - kBottom + 16,
                    number(log_x_ ? std::pow(10, x) : x).c_str());
    }
    out += format("<text x='%.1f' y='%.1f' class='x'>", (kLeft + kWidth - kRight) / 2, kHeight - 8) + escaped(x_label_) + "</text>";
    out += format("<text transform='translate(14 %.0f) rotate(-90)' class='x'>", kHeight / 2) + escaped(y_label_) + "</text>";
    double legend_x = kLeft + 8;
    for (const Line& line : lines_) {
      const char* colour = kColours[line.colour % kColours.size()];
      out += format("<polyline fill='none' stroke='%s' stroke-width='2' points='", colour);
      for (const auto& [x, y] : line.points) out += format("%.1f,%.1f ", px(at_x(x)), py(y));
      out += "'/>";
      if (line.points.size() <= 8) {
        for (const auto& [x, y] : line.points) out += format("<circle cx='%.1f' cy='%.1f' r='3.5' fill='%s'/>", px(at_x(x)), py(y), colour);
      }
      out += format("<text x='%.1f' y='%.1f' fill='%s' class='l'>", legend_x, kTop + 2, colour) + escaped(line.label) + "</text>";
      legend_x += 14 + 7.5 * static_cast<double>(line.label.size());
    }
    return out + "</svg>";
  }

 private:
  double at_x(double x) const { return log_x_ ? std::log10(std::max(x, 0.1)) : x; }
  std::vector<double> x_ticks(double x0, double x1) const {
    std::vector<double> ticks;
    if (log_x_) {
      for (double decade = std::floor(x0); decade <= x1; ++decade) {
        for (const double m : {1.0, 2.0, 5.0}) {
          if (const double x = decade + std::log10(m); x >= x0 && x <= x1) ticks.push_back(x);
        }
      }
      return ticks;
    }
    const double step = tick_step(x1 - x0);
    for (double x = std::ceil(x0 / step) * step; x <= x1 + step * 1e-6; x += step) ticks.push_back(x);
    return ticks;
  }

  std::string title_, x_label_, y_label_;
  bool log_x_ = false;
  std::vector<Line> lines_;
};

std::string bars(const std::string& title, const std::vector<std::pair<std::string, double>>& values, const char* unit) {
  constexpr double kBar = 26, kGap = 10, kLabel = 90;
  double most = 0;
  for (const auto& [label, value] : values) most = std::max(most, value);
  const double height = kTop + static_cast<double>(values.size()) * (kBar + kGap) + 6;
  std::string out =
      format("<svg viewBox='0 0 %.0f %.0f' role='img'><text x='8' y='18' class='t'>", kWidth, height) + escaped(title) + "</text>";
  double y = kTop;
  for (size_t i = 0; i < values.size(); ++i, y += kBar + kGap) {
    const double width = most == 0 ? 0 : values[i].second / most * (kWidth - kLabel - 110);
    out += format("<text x='%.0f' y='%.1f' class='y'>", kLabel - 8, y + 18) + escaped(values[i].first) + "</text>";
    out += format("<rect x='%.0f' y='%.1f' width='%.1f' height='%.0f' fill='%s'/><text x='%.1f' y='%.1f' class='l'>%s %s</text>", kLabel, y,
                  width, kBar, kColours[i % kColours.size()], kLabel + width + 6, y + 18, number(values[i].second).c_str(), unit);
  }
  return out + "</svg>";
}

/// Arms in the order they were first seen: a colour each, the same in every plot.
class Arms {
 public:
  explicit Arms(const ReplayReport& report) {
    for (const ArmReport& arm : report.arms) {
      if (std::find(names_.begin(), names_.end(), arm.arm) == names_.end()) names_.push_back(arm.arm);
    }
  }
  const std::vector<std::string>& names() const { return names_; }
  size_t index(const std::string& name) const {
    return static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }

 private:
  std::vector<std::string> names_;
};

std::string capacity_text(const Capacity& c) {
  const std::string sizes =
      format("device %lld tokens, host %.0f MiB", static_cast<long long>(c.device_tokens), static_cast<double>(c.host_bytes) / (1 << 20));
  return c.factor > 0 ? format("%.2f x the peak live set (", c.factor) + sizes + ")" : sizes;
}

std::string table(const std::vector<const ArmReport*>& arms, const ReplayReport& report) {
  std::string out =
      "<table><tr><th>arm<th>TTFT mean<th>to off<th>p50<th>p95<th>p99<th>E2E mean<th>to off<th>p95<th>hit rate<th>bound<th>recomputed"
      "<th>peak device<th>peak host<th>failed<th>bad bytes</tr>";
  const auto to_off = [](double value, double off) { return off > 0 ? format("%.2fx", value / off) : std::string("&ndash;"); };
  for (const ArmReport* arm : arms) {
    const ArmReport* off = report.baseline_of(*arm);
    const auto peak = [&](const char* tier) { return static_cast<double>(arm->peak_bytes.at(tier)) / (1 << 20); };
    out += "<tr><th title='" + escaped(arm->meaning) + "'>" + escaped(arm->arm);
    out += format("<td>%.0f ms<td>%s<td>%.0f<td>%.0f<td>%.0f<td>%.0f ms<td>%s<td>%.0f<td>%.1f %%<td>%.1f %%<td>%lld", arm->ttft_ms.mean,
                  to_off(arm->ttft_ms.mean, off == nullptr ? 0 : off->ttft_ms.mean).c_str(), arm->ttft_ms.p50, arm->ttft_ms.p95,
                  arm->ttft_ms.p99, arm->e2e_ms.mean, to_off(arm->e2e_ms.mean, off == nullptr ? 0 : off->e2e_ms.mean).c_str(),
                  arm->e2e_ms.p95, 100 * arm->hit_rate(), 100 * arm->hit_bound(), static_cast<long long>(arm->recomputed_tokens));
    out += format("<td>%.0f MiB<td>%.0f MiB<td>%lld of %lld<td>%lld</tr>", peak("device"), peak("host"),
                  static_cast<long long>(arm->failed), static_cast<long long>(arm->requests), static_cast<long long>(arm->byte_mismatches));
  }
  return out + "</table>";
}

std::string capacity_section(const std::vector<const ArmReport*>& arms, const ReplayReport& report, const Arms& colours) {
  std::string out = "<h2>Cache " + escaped(capacity_text(arms.front()->capacity)) + "</h2>" + table(arms, report) + "<div class='plots'>";
  Plot distribution("TTFT distribution", "milliseconds (log scale)", "% of calls at most this");
  distribution.log_x();
  std::vector<std::pair<std::string, double>> ttft, e2e, hit;
  for (const ArmReport* arm : arms) {
    Line line{arm->arm, colours.index(arm->arm), {}};
    for (int p = 0; p <= 100 && !arm->ttft_samples_ms.empty(); ++p) line.points.emplace_back(percentile(arm->ttft_samples_ms, p), p);
    distribution.add(std::move(line));
    ttft.emplace_back(arm->arm, arm->ttft_ms.mean);
    e2e.emplace_back(arm->arm, arm->e2e_ms.mean);
    hit.emplace_back(arm->arm, 100 * arm->hit_rate());
  }
  if (!arms.empty()) hit.emplace_back("bound", 100 * arms.front()->hit_bound());
  out += distribution.svg() + bars("TTFT, mean", ttft, "ms") + bars("End to end, mean", e2e, "ms") + bars("Prompt tokens reused", hit, "%");
  for (const char* tier : {"device", "host"}) {
    Plot occupancy(std::string("Tier occupancy: ") + tier, "seconds", "MiB");
    for (const ArmReport* arm : arms) {
      Line line{arm->arm, colours.index(arm->arm), {}};
      for (const OccupancySample& sample : arm->occupancy) {
        for (const TierFigure& figure : sample.tiers) {
          if (figure.name == tier) line.points.emplace_back(sample.at_s, static_cast<double>(figure.used_bytes) / (1 << 20));
        }
      }
      if (!line.points.empty()) occupancy.add(std::move(line));
    }
    out += occupancy.svg();
  }
  return out + "</div>";
}

std::string sweep_section(const ReplayReport& report, const Arms& colours) {
  Plot ttft("TTFT, mean, by cache size", "cache / peak live set", "milliseconds");
  Plot hit("Prompt tokens reused, by cache size", "cache / peak live set", "%");
  for (const std::string& name : colours.names()) {
    Line a{name, colours.index(name), {}}, b{name, colours.index(name), {}};
    for (const ArmReport& arm : report.arms) {
      if (arm.arm != name) continue;
      a.points.emplace_back(arm.capacity.factor, arm.ttft_ms.mean);
      b.points.emplace_back(arm.capacity.factor, 100 * arm.hit_rate());
    }
    std::sort(a.points.begin(), a.points.end());
    std::sort(b.points.begin(), b.points.end());
    ttft.add(std::move(a));
    hit.add(std::move(b));
  }
  return "<h2>The whole curve</h2><div class='plots'>" + ttft.svg() + hit.svg() + "</div>";
}

}  // namespace

std::string to_html(const ReplayReport& report) {
  std::string out =
      "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>kvtide "
      "replay</title><style>"
      "body{font:15px/1.5 system-ui,sans-serif;max-width:1340px;margin:2em auto;padding:0 1em;color:#1c2024;background:#fff}"
      "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}td,th{padding:.3em "
      ".7em;text-align:right;border-bottom:1px solid #ddd}"
      ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1em;margin-top:1em}svg{width:100%;border:1px solid "
      "#e4e6e9}"
      "svg text{font:12px system-ui,sans-serif;fill:#444}svg text.t{font-weight:600;font-size:14px;fill:#1c2024}svg text.y{text-anchor:end}"
      "svg text.x{text-anchor:middle}svg line.g{stroke:#eceef0}code{background:#f3f4f6;padding:.1em .3em}</style>";
  out += "<h1>kvtide replay: " + escaped(report.workload) + "</h1>";
  if (report.synthetic) out += "<p><b>Synthetic workload: generated sessions, not recorded ones.</b></p>";
  out += "<p>" + escaped(report.source) + ". " +
         format(
             "%d users, %zu sessions, %zu calls, %d repeat(s), prompts up to %lld tokens, replies up to %lld (forced: the server emits the "
             "recorded "
             "reply), pauses x %g capped at %g s.",
             report.users, report.sessions, report.calls, report.repeats, static_cast<long long>(report.max_context_tokens),
             static_cast<long long>(report.max_reply_tokens), report.gap_scale, report.gap_cap_s) +
         "</p>";
  out += "<p>Machine: " + escaped(report.machine) + ". Model: " + escaped(report.model) + ". Seed " + std::to_string(report.seed) +
         ".<br><code>" + escaped(report.command) + "</code></p>";
  const Arms colours(report);
  std::vector<std::vector<const ArmReport*>> by_capacity;
  for (const ArmReport& arm : report.arms) {
    const auto same = std::find_if(by_capacity.begin(), by_capacity.end(), [&](const auto& group) {
      const Capacity& c = group.front()->capacity;
      return c.device_tokens == arm.capacity.device_tokens && c.host_bytes == arm.capacity.host_bytes;
    });
    if (same == by_capacity.end())
      by_capacity.push_back({&arm});
    else
      same->push_back(&arm);
  }
  if (by_capacity.size() > 1) out += sweep_section(report, colours);
  for (const auto& group : by_capacity) out += capacity_section(group, report, colours);
  return out + "</html>\n";
}

}  // namespace kvtide::app

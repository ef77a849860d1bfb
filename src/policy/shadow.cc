#include "policy/shadow.h"

#include <algorithm>

#include "base/check.h"

namespace kvtide::policy {
namespace {

constexpr base::DurationNs kPeriodNs = 300 * base::kSecond;

// Blocks of `path`, which is in order of depth, before `depth`.
size_t blocks_before(std::span<const SampledBlock> path, int32_t depth) {
  const auto end = std::partition_point(path.begin(), path.end(), [depth](const SampledBlock& b) { return b.depth < depth; });
  return static_cast<size_t>(end - path.begin());
}

}  // namespace

std::string_view rival_name(Rival rival) {
  switch (rival) {
    case Rival::kLruHalf: return "lru_half";
    case Rival::kLru: return "lru";
    case Rival::kLruDouble: return "lru_double";
    case Rival::kOptimal: return "optimal";
  }
  return "optimal";
}

Regret& Regret::operator+=(const Regret& other) {
  prompt += other.prompt;
  reused += other.reused;
  compulsory += other.compulsory;
  for (size_t i = 0; i < kRivals.size(); ++i) {
    lost[i] += other.lost[i];
    won[i] += other.won[i];
  }
  return *this;
}

Regret& Regret::operator-=(const Regret& other) {
  prompt -= other.prompt;
  reused -= other.reused;
  compulsory -= other.compulsory;
  for (size_t i = 0; i < kRivals.size(); ++i) {
    lost[i] -= other.lost[i];
    won[i] -= other.won[i];
  }
  return *this;
}

void Shadow::Row::turn_to(int64_t now) {
  constexpr auto kAll = static_cast<int64_t>(kPeriods);
  for (int64_t p = std::max(period + 1, now - kAll + 1); p <= now; ++p) before[static_cast<size_t>(p % kAll)] = total;
  period = std::max(period, now);
}

TenantRegret Shadow::Row::view(const std::string& tenant, int64_t now) const {
  constexpr auto kAll = static_cast<int64_t>(kPeriods);
  TenantRegret out{tenant, total, {}};
  if (now - period >= kAll) return out;  // nothing came since
  out.last_hour = total;
  out.last_hour -= before[static_cast<size_t>((now + 1) % kAll)];  // the start of the oldest period that counts
  return out;
}

Shadow::Shadow(const ShadowConfig& config) : config_(config), counts_(config.window), held_(config.window) {
  KV_CHECK(config.block_tokens > 0 && config.tracked_max > 0 && (config.window & (config.window - 1)) == 0);
}

std::vector<SampledBlock> Shadow::sample(std::span<const index::BlockKey> keys, int32_t first) const {
  std::vector<SampledBlock> out;
  if (config_.capacity_blocks <= 0) return out;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t key = index::short_key(keys[i]);
    if (sampled(key)) out.push_back({key, first + static_cast<int32_t>(i)});
  }
  return out;
}

Shadow::Row& Shadow::row_of(const std::string& tenant) {
  if (const auto it = rows_.find(tenant); it != rows_.end()) return it->second;
  return rows_.size() < config_.tenants_max ? rows_[tenant] : rows_["other"];
}

// Sets path_ and found_, and makes room for a new moment; false when none of the blocks is looked at.
bool Shadow::begin_moment(std::span<const SampledBlock> path) {
  path_.clear();
  found_.clear();
  for (const SampledBlock& block : path) {
    if (sampled(block.key)) path_.push_back(block);  // fewer may be looked at than when they were chosen
  }
  if (path_.empty()) return false;
  ++now_;
  while (oldest_ != kNone && entries_[oldest_].moment + config_.window <= now_) forget(oldest_);
  held_.clear(now_);
  for (const SampledBlock& block : path_) {
    const auto it = by_key_.find(block.key);
    if (it == by_key_.end()) break;
    found_.push_back(it->second);
  }
  return true;
}

// What each rival would have reused of path_, beside what was reused.
Regret Shadow::judge(const Use& use) {
  const int32_t blocks = (use.prompt_tokens - 1) / config_.block_tokens;  // one token at least is always computed
  const size_t counted = blocks_before(path_, blocks);
  const size_t reused = blocks_before(path_, std::min(blocks, use.reused_tokens / config_.block_tokens));
  const size_t known = std::min(found_.size(), counted);
  const std::array<int64_t, 3> slots{config_.capacity_blocks / 2 / weight_, config_.capacity_blocks / weight_, config_.capacity_blocks * 2 / weight_};
  constexpr auto kOptimal = static_cast<size_t>(Rival::kOptimal);
  std::array<size_t, kRivals.size()> hits{};
  for (size_t begin = 0, end = 0; begin < known; begin = end) {
    const uint64_t moment = entries_[found_[begin]].moment;
    while (end < known && entries_[found_[end]].moment == moment) ++end;
    const auto run = static_cast<int64_t>(end - begin);
    const int64_t newer = counts_.after(moment, now_);
    for (size_t i = 0; i < slots.size(); ++i) hits[i] += static_cast<size_t>(std::clamp<int64_t>(slots[i] - newer, 0, run));
    if (hits[kOptimal] < begin) continue;
    const int64_t room = (config_.capacity_blocks - held_.peak(moment, now_)) / weight_;
    const int64_t taken = std::clamp<int64_t>(room, 0, run);
    held_.add(moment, now_, taken * weight_);
    hits[kOptimal] += static_cast<size_t>(taken);
  }
  const int64_t unit = weight_ * config_.block_tokens;
  Regret out;
  for (size_t i = 0; i < hits.size(); ++i) {
    out.lost[i] = static_cast<int64_t>(hits[i] - std::min(hits[i], reused)) * unit;
    out.won[i] = static_cast<int64_t>(reused - std::min(hits[i], reused)) * unit;
  }
  out.compulsory = static_cast<int64_t>(counted - std::max(known, reused)) * unit;
  return out;
}

void Shadow::admitted(const Use& use, base::TimeNs now_ns) {
  if (config_.capacity_blocks <= 0 || use.prompt_tokens <= 0) return;
  Regret change;
  if (begin_moment(use.path)) {
    change = judge(use);
    touch();
  }
  change.prompt = use.prompt_tokens;
  change.reused = use.reused_tokens;
  // The tokens behind the last full block are in no block yet; some of them may still lie in a sequence that goes on.
  const int32_t full = (use.prompt_tokens - 1) / config_.block_tokens * config_.block_tokens;
  change.compulsory += use.prompt_tokens - std::max(full, use.reused_tokens);
  const int64_t period = now_ns / kPeriodNs;
  for (Row* row : {&all_, &row_of(use.tenant)}) {
    row->turn_to(period);
    row->total += change;
  }
}

void Shadow::finished(std::span<const SampledBlock> path) {
  if (begin_moment(path)) touch();
}

// Makes the blocks of path_ the newest: the deepest first, so that the first one ends up newest.
void Shadow::touch() {
  for (size_t i = path_.size(); i > 0; --i) {
    const auto [it, fresh] = by_key_.try_emplace(path_[i - 1].key, kNone);
    if (fresh) {
      if (free_.empty()) {
        free_.push_back(static_cast<int32_t>(entries_.size()));
        entries_.emplace_back();
      }
      it->second = free_.back();
      free_.pop_back();
      entries_[it->second].key = it->first;
    } else {
      counts_.add(entries_[it->second].moment, -1);
      unlink(it->second);
    }
    entries_[it->second].moment = now_;
    push_newest(it->second);
  }
  counts_.add(now_, static_cast<int64_t>(path_.size()));
  stay_bounded();
}

void Shadow::unlink(int32_t at) {
  Entry& e = entries_[at];
  (e.newer == kNone ? newest_ : entries_[e.newer].older) = e.older;
  (e.older == kNone ? oldest_ : entries_[e.older].newer) = e.newer;
}

void Shadow::push_newest(int32_t at) {
  Entry& e = entries_[at];
  e.newer = kNone;
  e.older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = at;
  newest_ = at;
}

void Shadow::forget(int32_t at) {
  counts_.add(entries_[at].moment, -1);
  unlink(at);
  by_key_.erase(entries_[at].key);
  free_.push_back(at);
}

void Shadow::stay_bounded() {
  const int64_t horizon = config_.capacity_blocks * config_.horizon;
  while (static_cast<int64_t>(known()) * weight_ > horizon && known() > 0) forget(oldest_);
  while (known() > config_.tracked_max) halve();
}

void Shadow::halve() {
  weight_ *= 2;
  for (int32_t at = newest_; at != kNone;) {
    const int32_t next = entries_[at].older;
    if (!sampled(entries_[at].key)) forget(at);
    at = next;
  }
}

RegretReport Shadow::report(base::TimeNs now_ns) const {
  const int64_t period = now_ns / kPeriodNs;
  RegretReport out;
  out.rate = 1.0 / static_cast<double>(weight_);
  out.capacity_blocks = config_.capacity_blocks;
  out.tracked_blocks = static_cast<int64_t>(known());
  out.all = all_.view("", period);
  for (const auto& [tenant, row] : rows_) out.tenants.push_back(row.view(tenant, period));
  return out;
}

}  // namespace kvtide::policy

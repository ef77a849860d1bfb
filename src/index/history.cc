#include "index/history.h"

namespace kvtide::index {

std::string_view loss_name(Loss loss) {
  switch (loss) {
    case Loss::kNone: return "";
    case Loss::kCapacity: return "capacity";
    case Loss::kSuperseded: return "superseded";
    case Loss::kHint: return "hint";
    case Loss::kFailedLoad: return "failed_load";
  }
  return "unknown";
}

void History::note(const BlockKey& key, Loss loss) {
  const uint64_t id = short_key(key);
  if (auto it = entries_.find(id); it != entries_.end()) {
    it->second = loss;
    return;
  }
  if (capacity_ == 0) return;
  if (ring_.size() < capacity_) {
    ring_.push_back(id);
  } else {
    entries_.erase(ring_[next_]);
    ring_[next_] = id;
    next_ = (next_ + 1) % capacity_;
  }
  entries_.emplace(id, loss);
}

Loss History::loss(const BlockKey& key) const {
  const auto it = entries_.find(short_key(key));
  return it == entries_.end() ? Loss::kNone : it->second;
}

}  // namespace kvtide::index

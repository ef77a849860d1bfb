#include "sim/trace.h"

namespace kvtide::sim {
namespace {

uint64_t mixed(uint64_t x) {  // the finaliser of splitmix64 (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t hash(Node parent, uint32_t scope, uint64_t label) { return mixed(label + mixed((static_cast<uint64_t>(parent) << 32) + scope)); }

}  // namespace

Node NodeTree::child(Node parent, uint32_t scope, uint64_t label) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  size_t i = hash(parent, scope, label) & mask;
  for (; slots_[i].node != kNoNode; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.label == label && slot.parent == parent && slot.scope == scope) return slot.node;
  }
  const auto node = static_cast<Node>(parent_.size());
  parent_.push_back(parent);
  slots_[i] = {label, parent, scope, node};
  ++used_;
  return node;
}

void NodeTree::grow() {
  std::vector<Slot> old(slots_.empty() ? size_t{1024} : slots_.size() * 2);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.node == kNoNode) continue;
    size_t i = hash(slot.parent, slot.scope, slot.label) & mask;
    while (slots_[i].node != kNoNode) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

}  // namespace kvtide::sim

// Strong integer ids: two kinds of id never mix, and unwrap only at C edges.
//
// Threading: value types.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace kvtide::base {

template <typename Tag, typename Rep = uint32_t>
struct Id {
  static constexpr Rep kNone = std::numeric_limits<Rep>::max();
  Rep value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr bool valid() const { return value != kNone; }
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
};

using RequestId = Id<struct RequestTag, uint64_t>;
using SeqId = Id<struct SeqTag>;          // an engine sequence
using SessionId = Id<struct SessionTag>;  // a session inside the core; clients' names are strings
using BranchId = Id<struct BranchTag>;
using BlockId = Id<struct BlockTag>;  // a node of the prefix tree
using SlotId = Id<struct SlotTag>;    // a place in a tier

}  // namespace kvtide::base

template <typename Tag, typename Rep>
struct std::hash<kvtide::base::Id<Tag, Rep>> {
  size_t operator()(kvtide::base::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>()(id.value); }
};

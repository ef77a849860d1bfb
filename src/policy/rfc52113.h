// The public proposal vllm-project/vllm#52113: retention in three classes with a soft time to live, without its published defects.
//
//   class A  its time to live has passed, or nobody asked for one, and no session claims it
//   class B  the same, but sessions claim it
//   class C  its time to live has not passed
//
// A goes before B, B before C, and within a class the least recently used goes first. Nothing is ever pinned: when only C is left, C goes.
// A shared block is in the highest class of its claims, by the latest of their deadlines. Using a block never renews it: a deadline moves
// only when a client asks. A claim covers a block and all that it extends, so no block is in a higher class than the one before it.
//
// Threading: confined to the loop. Cost: O(claimants of the block). Holds nothing: a deadline lives in the session that asked, is found
// through the live claims of the block, and so ends with either.
#pragma once

#include <memory>

#include "policy/eviction_policy.h"

namespace kvtide::policy {

/// The referents of `view` must outlive the policy.
std::unique_ptr<EvictionPolicy> make_rfc52113(PolicyView view);

}  // namespace kvtide::policy

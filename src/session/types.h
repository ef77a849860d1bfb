// Events into and decisions out of the session-aware manager.
//
// Threading: value types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "hint/hint.h"
#include "index/block_index.h"
#include "index/history.h"
#include "index/keys.h"
#include "policy/ideas.h"

namespace kvtide::session {

using base::BlockId;
using base::BranchId;
using base::RequestId;
using base::SeqId;
using base::SessionId;
using base::SlotId;
using base::TimeNs;
using index::BlockKey;
using index::Tier;

/// What the core must know of a device. Token counts are KV cells.
struct DeviceShape {
  bool lanes = false;             // each sequence has its own cells; sequences cannot share
  int32_t seqs = 1;
  int32_t block_tokens = 64;
  int64_t device_tokens = 0;
  int32_t seq_tokens_max = 0;
  bool reuse = true;              // false: nothing can be cut, shared or copied
};

struct SamConfig {
  DeviceShape device;
  int64_t host_blocks = 0;        // budget of the host tier
  int64_t block_bytes = 0;
  std::string policy = "affinity";
  policy::Ideas ideas;            // of affinity
  bool hints = true;              // false: hints are answered `unsupported` and change nothing
  int32_t sessions_max = 4096;
  int32_t branches_max = 64;      // of one session
  size_t history_blocks = 1U << 20;
  // `retain` protects at most this share of all blocks that device and host hold: for one tenant, and for one session tree.
  double retain_tenant_share = 0.5;
  double retain_tree_share = 0.25;
};

struct Arrival {
  RequestId id;
  std::string tenant;
  hint::Identity identity;        // empty session_id: derive one from lineage
  BlockKey root;                  // of the chain: tenant, salt, model
  std::vector<int32_t> tokens;    // the prompt
  std::vector<BlockKey> keys;     // of its full blocks
  int32_t max_new_tokens = 0;
  std::vector<std::string> prior_tools; // whose results the prompt brings
};

/// A turn of a branch, to speak of it after it ended.
struct BranchRef {
  SessionId session;
  BranchId branch;
  uint64_t life = 0;  // of the session; never used again
  int64_t turns = 0;  // of the session when the turn began
};

/// One thing the loop must do, in the order given, before it calls the manager again.
struct Decision {
  enum class Kind : uint8_t {
    kTruncate,  // cut `seq` to `end` tokens
    kShare,     // `seq` (empty) gets the first `end` tokens of `from`
    kDedup,     // `seq` takes tokens [begin, end) from `from`
    kCopyOut,   // blocks [begin, begin + blocks.size()) of `seq` to the host tier; answer copied_out or copy_out_failed for each
    kCopyIn,    // host `slots` to blocks [begin, ...) of `seq`; answer loaded
    kDropHost,  // forget host `slots`
  };
  Kind kind;
  SeqId seq;
  SeqId from;
  int32_t begin = 0;
  int32_t end = 0;
  std::vector<BlockId> blocks;
  std::vector<SlotId> slots;
};

/// Why a copy-in brought fewer blocks than it asked for.
enum class LoadFault : uint8_t {
  kNone,
  kCorrupt,  // the block behind the last good one does not match its checksum: it is dropped
  kRefused,  // the engine did not take them; the copies are good
};

enum class Finish : uint8_t { kStop, kLength, kToolCalls, kCancelled, kError };

enum class Miss : uint8_t { kNone, kFirstDifference, kEvicted, kNeverStored, kOtherSalt, kSlowerThanRecompute, kFailedLoad };

/// What the cache did for a request. Tokens; device + host + recomputed = prompt.
struct Reuse {
  int32_t prompt = 0;
  int32_t device = 0;
  int32_t host = 0;
  int32_t compulsory = 0;         // never seen before: no cache could have had them
  Miss miss = Miss::kNone;
  int32_t miss_token = -1;
  index::Loss loss = index::Loss::kNone;  // when miss is kEvicted
};

}  // namespace kvtide::session

// What the session manager costs: block events a second on one core, and bytes a block of everything that it remembers. No engine, no copies:
// turns of many sessions arrive, are admitted, computed and finished, and memory is short, so that blocks leave all the time.
//
//   core_bench [IGNORED...]
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/random.h"
#include "session/sam.h"

namespace {

using namespace kvtide;

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kSessions = 1000;
constexpr int32_t kStartBlocks = 400;   // of a session's first prompt; each turn adds some
constexpr int32_t kTurns = 20000;

struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<index::BlockKey> keys;
};

class Load {
 public:
  Load(const std::string& policy, int64_t device_blocks) {
    session::SamConfig config;
    config.device.seqs = 2 * kSessions;
    config.device.block_tokens = kBlockTokens;
    config.device.device_tokens = device_blocks * kBlockTokens;
    config.device.seq_tokens_max = INT32_MAX;
    config.block_bytes = 1;
    config.policy = policy;
    sam_ = session::Sam::make(config).value();
    root_ = index::root_key({"bench", "", base::Digest{}, kBlockTokens});
    for (int32_t s = 0; s < kSessions; ++s) extend(all_[static_cast<size_t>(s)], kStartBlocks);
  }

  session::Sam& sam() { return *sam_; }

  /// Blocks of the prompt.
  int64_t turn(size_t s) {
    const Conversation& c = all_[s];
    now_ns_ += base::kSecond / 20;
    const base::RequestId id(++requests_);
    session::Arrival arrival;
    arrival.id = id;
    arrival.tenant = "bench";
    arrival.identity.session_id = std::to_string(s);
    arrival.root = root_;
    arrival.tokens = c.tokens;
    arrival.tokens.push_back(1);
    arrival.keys = c.keys;
    const auto blocks = static_cast<int64_t>(c.keys.size());
    sam_->arrive(std::move(arrival), now_ns_);
    if (sam_->admit(id, now_ns_) != session::Sam::Admission::kAdmitted) std::exit(1);
    sam_->extend(id, static_cast<int32_t>(sam_->tokens(id).size()) - sam_->length(id), now_ns_);
    sam_->finish(id, session::Finish::kToolCalls, 64, now_ns_);
    sam_->take_decisions();
    if (requests_ % 20 == 0) sam_->tick(now_ns_);
    return blocks;
  }

  /// The session's next prompt is longer.
  void grow(size_t s) { extend(all_[s], 4); }

  /// What the load itself holds, apart from the manager.
  int64_t own_bytes() const {
    int64_t bytes = 0;
    for (const Conversation& c : all_) bytes += static_cast<int64_t>(c.tokens.capacity() * sizeof(int32_t) + c.keys.capacity() * sizeof(index::BlockKey));
    return bytes;
  }

 private:
  void extend(Conversation& c, int32_t blocks) {
    for (int32_t i = 0; i < blocks * kBlockTokens; ++i) c.tokens.push_back(static_cast<int32_t>(random_.below(32000)));
    c.keys = index::chain_keys(root_, c.tokens, kBlockTokens);
  }

  base::Random random_{1};
  std::unique_ptr<session::Sam> sam_;
  index::BlockKey root_;
  std::vector<Conversation> all_ = std::vector<Conversation>(kSessions);
  base::TimeNs now_ns_ = 0;
  uint64_t requests_ = 0;
};

int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

void measure(const std::string& policy, double share) {
  const auto device_blocks = static_cast<int64_t>(share * kSessions * kStartBlocks);
  const int64_t empty = heap_bytes();
  Load load(policy, device_blocks);
  int64_t blocks = 0;
  base::Random random(2);
  double seconds = 0;
  for (int32_t t = 0; t < kTurns; ++t) {
    // Half of the turns belong to a tenth of the sessions. Making the next prompt is not timed.
    const size_t s = random.below(2) == 0 ? random.below(kSessions / 10) : random.below(kSessions);
    const auto begin = std::chrono::steady_clock::now();
    blocks += load.turn(s);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    load.grow(s);
  }
  const auto index_blocks = static_cast<double>(load.sam().blocks().size());
  const double bytes = static_cast<double>(heap_bytes() - empty - load.own_bytes());
  std::printf("%-9s room for %3.0f %%   %6.2f M block events/s   %6.1f bytes a block in the index, %6.1f with sessions, sequences and history\n",
              policy.c_str(), 100 * share, static_cast<double>(blocks) * 1e-6 / seconds, static_cast<double>(load.sam().blocks().memory_bytes()) / index_blocks,
              bytes / index_blocks);
}

}  // namespace

int main() {
  std::printf("%d sessions of %d blocks and more, %d turns, one core\n", kSessions, kStartBlocks, kTurns);
  for (const char* policy : {"lru", "rfc52113", "affinity"}) {
    for (const double share : {0.5, 1.5}) measure(policy, share);
  }
  return 0;
}

// A world for scenario tests: the real manager, with an engine and a host tier that keep what they are told and check every byte.
//
// A cell holds its token; a host slot holds the whole token chain that ends with its block. A load that would put bytes behind the wrong
// prefix aborts. Time moves only by advance().
//
// Threading: thread-compatible.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session::testing {

class World {
 public:
  explicit World(SamConfig config) : sam_(std::move(Sam::make(config).value())), config_(sam_->config()), seqs_(static_cast<size_t>(config_.device.seqs)) {}

  Sam& sam() { return *sam_; }
  TimeNs now() const { return now_ns_; }
  void advance(double seconds) { now_ns_ += static_cast<TimeNs>(seconds * 1e9); }

  // --- One whole turn at once ---
  struct Turn {
    std::string session;            // empty: no identity
    std::string parent;
    std::vector<int32_t> prompt;
    int32_t reply = 0;              // tokens generated: 9000, 9001, ...
    Finish finish = Finish::kStop;
    std::string tenant = "t";
    std::string salt;
  };
  Reuse turn(const Turn& t) {
    const RequestId id = arrive(t);
    KV_CHECK(admit(id));
    run(id, t.reply);
    const Reuse reuse = sam_->reuse(id);
    finish(id, t.finish);
    return reuse;
  }

  // --- Step by step ---
  RequestId arrive(const Turn& t) {
    Arrival a;
    a.id = RequestId(next_id_++);
    a.tenant = t.tenant;
    a.identity = {t.session, t.parent};
    a.root = index::root_key({t.tenant, t.salt, base::Digest{}, config_.device.block_tokens});
    a.tokens = t.prompt;
    a.keys = index::chain_keys(a.root, a.tokens, config_.device.block_tokens);
    a.max_new_tokens = t.reply;
    const RequestId id = a.id;
    sam_->arrive(std::move(a), now_ns_);
    execute();
    return id;
  }
  bool admit(RequestId id) {
    const bool in = sam_->admit(id, now_ns_) == Sam::Admission::kAdmitted;
    execute();
    if (!in) return false;
    load(id);
    return true;
  }
  void load(RequestId id) {
    execute();
    while (sam_->next_load(id, 4, now_ns_)) {
      const int32_t ok = execute();
      sam_->loaded(id, ok, ok < last_asked_ ? LoadFault::kCorrupt : LoadFault::kNone, now_ns_);
      execute();
    }
    check_prefix(id);
  }
  /// Computes up to `count` prompt tokens; whether any was left.
  bool prefill(RequestId id, int32_t count) {
    const auto total = static_cast<int32_t>(sam_->tokens(id).size());
    const int32_t n = std::min(count, total - sam_->length(id));
    if (n <= 0) return false;
    extend(id, n);
    return true;
  }
  /// One generated token; false when there is no cell for it.
  bool decode(RequestId id, int32_t token) {
    const bool room = sam_->reserve(id, 1, now_ns_);
    execute();
    if (!room) return false;
    sam_->append(id, token);
    extend(id, 1);
    return true;
  }
  void run(RequestId id, int32_t reply) {
    while (prefill(id, 32)) {
    }
    for (int32_t i = 0; i < reply; ++i) KV_CHECK(decode(id, 9000 + i));
  }
  void finish(RequestId id, Finish finish = Finish::kStop) {
    sam_->finish(id, finish, static_cast<int32_t>(sam_->tokens(id).size()) - sam_->reuse(id).prompt, now_ns_);
    execute();
  }
  void preempt(RequestId id) {
    sam_->preempt(id, now_ns_);
    execute();
  }

  hint::Receipt hint(const std::string& session, hint::Verb verb, const std::string& tenant = "t") {
    hint::Action action;
    action.verb = verb;
    action.identity.session_id = session;
    action.hint_id = "h" + std::to_string(next_id_++);
    return answered(tenant, action);
  }
  hint::Receipt retain(const std::string& session, double seconds, const std::string& tenant = "t") {
    hint::Action action;
    action.verb = hint::Verb::kRetain;
    action.identity.session_id = session;
    action.ttl_ns = static_cast<base::DurationNs>(seconds * 1e9);
    return answered(tenant, action);
  }
  hint::Receipt pause(const std::string& session, double expected_s) {
    hint::Action action;
    action.verb = hint::Verb::kPause;
    action.identity.session_id = session;
    action.expected_ns = static_cast<base::DurationNs>(expected_s * 1e9);
    return sam_->hint("t", action, now_ns_);
  }
  /// Background work until there is none; receipts that were completed.
  std::vector<Sam::CompletedReceipt> run_until_quiet() {
    while (sam_->next_prefetch(4, now_ns_)) {
      const int32_t ok = execute();
      sam_->prefetch_loaded(ok, ok < last_asked_ ? LoadFault::kCorrupt : LoadFault::kNone, now_ns_);
      execute();
    }
    execute();
    while (sam_->next_write_back(4, now_ns_)) execute();
    return sam_->take_receipts();
  }

  int64_t blocks_in(const std::string& session, Tier tier, const std::string& tenant = "t") {
    return sam_->blocks_in(sam_->sessions().find(tenant, session), tier);
  }
  int32_t length(RequestId id) const { return sam_->length(id); }
  void check() { sam_->check_invariants(now_ns_); }

  /// Does what was decided so far. Everything that calls the manager for a test does so by itself.
  void run_decisions() { execute(); }
  /// With `hold_stores` copies out are taken and answered only here.
  void answer_stores() {
    for (const Held& held : std::exchange(held_, {})) store(held.block, held.chain);
    execute();
  }

  bool hold_stores = false;
  /// The next copies of this kind fail.
  int32_t fail_loads = 0;
  int32_t fail_stores = 0;

 private:
  struct Held {
    BlockId block;
    std::vector<int32_t> chain;
  };

  // As the loop does it: a move that its copies completed at once is answered as done.
  hint::Receipt answered(const std::string& tenant, const hint::Action& action) {
    const hint::Receipt receipt = sam_->hint(tenant, action, now_ns_);
    execute();
    if (receipt.status != hint::Outcome::kDeferred) return receipt;
    return sam_->take_receipt(tenant, action.hint_id).value_or(receipt);
  }

  void store(BlockId block, const std::vector<int32_t>& chain) {
    if (fail_stores > 0) {
      --fail_stores;
      sam_->copy_out_failed(block, now_ns_);
      return;
    }
    const SlotId slot(next_slot_++);
    slots_[slot.value] = chain;
    KV_CHECK(static_cast<int64_t>(slots_.size()) <= config_.host_blocks);
    sam_->copied_out(block, slot, now_ns_);
  }

  void extend(RequestId id, int32_t n) {
    const auto at = static_cast<size_t>(sam_->length(id));
    std::vector<int32_t>& cells = seqs_[sam_->sequence(id).value];
    KV_CHECK(cells.size() == at);
    const std::vector<int32_t> tokens(sam_->tokens(id).begin(), sam_->tokens(id).end());
    cells.insert(cells.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(at) + n);
    sam_->extend(id, n, now_ns_);
    execute();
  }

  void check_prefix(RequestId id) {
    const std::vector<int32_t>& cells = seqs_[sam_->sequence(id).value];
    KV_CHECK(static_cast<int32_t>(cells.size()) == sam_->length(id));
    KV_CHECK(std::equal(cells.begin(), cells.end(), sam_->tokens(id).begin()));
  }

  // Does what the manager decided; returns the blocks that the last copy-in brought.
  int32_t execute() {
    int32_t loaded = 0;
    std::vector<Decision> decisions = sam_->take_decisions();
    while (!decisions.empty()) {
      for (const Decision& d : decisions) loaded = apply(d);
      decisions = sam_->take_decisions();
    }
    return loaded;
  }

  int32_t apply(const Decision& d) {
    const auto b = static_cast<size_t>(config_.device.block_tokens);
    auto cells = [&](SeqId id) -> std::vector<int32_t>& { return seqs_[id.value]; };
    switch (d.kind) {
      case Decision::Kind::kTruncate:
        KV_CHECK(cells(d.seq).size() >= static_cast<size_t>(d.end));
        cells(d.seq).resize(static_cast<size_t>(d.end));
        return 0;
      case Decision::Kind::kShare:
        KV_CHECK(!config_.device.lanes && cells(d.seq).empty() && cells(d.from).size() >= static_cast<size_t>(d.end));
        cells(d.seq).assign(cells(d.from).begin(), cells(d.from).begin() + d.end);
        return 0;
      case Decision::Kind::kDedup:
        KV_CHECK(!config_.device.lanes && d.from.valid());
        KV_CHECK(std::equal(cells(d.seq).begin(), cells(d.seq).begin() + d.end, cells(d.from).begin()));
        return 0;
      case Decision::Kind::kCopyOut:
        for (size_t i = 0; i < d.blocks.size(); ++i) {
          const size_t end = (static_cast<size_t>(d.begin) + i + 1) * b;
          KV_CHECK(cells(d.seq).size() >= end);
          Held held{d.blocks[i], {cells(d.seq).begin(), cells(d.seq).begin() + static_cast<std::ptrdiff_t>(end)}};
          if (hold_stores) {
            held_.push_back(std::move(held));
          } else {
            store(held.block, held.chain);
          }
        }
        return 0;
      case Decision::Kind::kCopyIn: {
        last_asked_ = static_cast<int32_t>(d.slots.size());
        int32_t ok = 0;
        for (SlotId slot : d.slots) {
          if (fail_loads > 0) {
            --fail_loads;
            return ok;
          }
          const std::vector<int32_t>& chain = slots_.at(slot.value);
          std::vector<int32_t>& to = cells(d.seq);
          KV_CHECK(chain.size() == to.size() + b && std::equal(to.begin(), to.end(), chain.begin()));
          to = chain;
          ++ok;
        }
        return ok;
      }
      case Decision::Kind::kDropHost:
        for (SlotId slot : d.slots) KV_CHECK(slots_.erase(slot.value) == 1);
        return 0;
    }
    return 0;
  }

  std::unique_ptr<Sam> sam_;
  const SamConfig config_;
  std::vector<std::vector<int32_t>> seqs_;
  std::map<uint32_t, std::vector<int32_t>> slots_;
  std::vector<Held> held_;
  TimeNs now_ns_ = base::kSecond;
  uint64_t next_id_ = 1;
  uint32_t next_slot_ = 1;
  int32_t last_asked_ = 0;
};

inline constexpr int32_t kBlock = 8;  // tokens

/// A small manager. Lanes share `device_tokens` out evenly; in the unified layout one sequence may use them all.
inline SamConfig config(bool lanes, int32_t seqs, int32_t device_tokens, int64_t host_blocks, const std::string& policy = "affinity") {
  SamConfig c;
  c.device = {lanes, seqs, kBlock, device_tokens, lanes ? device_tokens / seqs : device_tokens, true};
  c.host_blocks = host_blocks;
  c.block_bytes = 100;
  c.policy = policy;
  return c;
}

/// `n` tokens that no other `seed` gives.
inline std::vector<int32_t> text(int32_t seed, int32_t n) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(seed * 10000 + i);
  return tokens;
}

inline std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<int32_t> reply(int32_t n) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(9000 + i);
  return tokens;
}

}  // namespace kvtide::session::testing

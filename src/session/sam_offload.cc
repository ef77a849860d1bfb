// Offload: copies first; the device copies go when every colder copy is complete, and only then the receipt says what moved.
#include <algorithm>

#include "base/check.h"
#include "session/sam.h"

namespace kvtide::session {
namespace {

using hint::Outcome;

constexpr size_t kOffloadsMax = 256;  // under way

}  // namespace

hint::Receipt Sam::offload(SessionId id, hint::Receipt receipt, TimeNs now_ns) {
  if (config_.host_blocks == 0) return answer(receipt, Outcome::kUnsupported, "there is no host tier (--host-memory 0)");
  if (offloads_.size() >= kOffloadsMax) return answer(receipt, Outcome::kRejected, "too many offloads wait for their copies");
  const std::vector<SessionId> tree = sessions_.at(id).parent.empty() ? sessions_.tree(id) : std::vector<SessionId>{id};
  Offload o;
  o.tenant = sessions_.at(id).tenant;
  o.receipt = std::move(receipt);
  for (SessionId member : tree) {
    const Session& session = sessions_.at(member);
    if (session.running > 0) {
      o.busy = true;
      continue;
    }
    std::vector<SeqId> mine;
    seqs_.for_each(Sequence::State::kIdle, [&](SeqId seq, const Sequence& s) {
      if (s.owner.valid() && sessions_.branch(s.owner).live && sessions_.branch(s.owner).session == member) mine.push_back(seq);
    });
    for (SeqId seq : mine) {
      // Nothing leaves the device before its colder copy is complete: what the host tier does not take stays.
      const std::vector<BlockId> path = seqs_.at(seq).path;
      if (write_back(seq, 0, now_ns) < static_cast<int32_t>(path.size())) {
        o.full = true;
        continue;
      }
      for (BlockId block : path) {
        blocks_.lease(block, Tier::kHost);  // room for the next sequence must not be made of this one
        if (copying_out_.contains(block)) o.copying.insert(block);
      }
      o.parts.push_back({seq, seqs_.at(seq).owner, member, session.life, session.turns, path});
    }
  }
  if (o.copying.empty()) return settle_offload(o, now_ns);
  o.receipt = answer(std::move(o.receipt), Outcome::kDeferred, "copying");
  offloads_.push_back(std::move(o));
  return offloads_.back().receipt;
}

// All copies were answered. Takes from the device what is complete and still as it was.
hint::Receipt Sam::settle_offload(Offload& o, TimeNs now_ns) {
  bool failed = false;
  bool moved_on = false;
  for (const Offload::Part& part : o.parts) {
    const Sequence& seq = seqs_.at(part.seq);
    const Session& session = sessions_.at(part.session);
    const bool same = !part.cancelled && session.live && session.life == part.life && session.turns == part.turns &&
                      seq.state == Sequence::State::kIdle && seq.owner == part.branch && seq.path == part.path;
    // A copy that failed holds what stands before it on the device, as nothing can be loaded behind a gap.
    size_t keep = part.path.size();
    for (size_t i = part.path.size(); i > 0 && !copy_failed(part.path[i - 1]); --i) keep = i - 1;
    failed = failed || keep > 0;
    for (BlockId block : part.path) unlease_host(block, now_ns);
    moved_on = moved_on || !same;
    if (!same || (keep > 0 && keep == part.path.size())) continue;
    cut(part.seq, static_cast<int32_t>(keep) * config_.device.block_tokens, {}, index::Loss::kHint, now_ns);
    seqs_.set_idle(part.seq, now_ns);
    for (size_t i = keep; i < part.path.size(); ++i) {
      const bool stays = blocks_.at(part.path[i]).copy(Tier::kDevice).present();
      ++(stays ? o.receipt.shared_kept : o.receipt.blocks);
    }
  }
  hint::Receipt& receipt = o.receipt;
  receipt.bytes = receipt.blocks * config_.block_bytes;
  if (receipt.blocks > 0) {
    receipt.from = index::tier_name(Tier::kDevice);
    receipt.to = index::tier_name(Tier::kHost);
  }
  const bool some = receipt.blocks > 0;
  if (failed) return answer(receipt, some ? Outcome::kClipped : Outcome::kFailed, "a copy to the host tier failed");
  if (o.full) return answer(receipt, some ? Outcome::kClipped : Outcome::kFailed, "the host tier has no room for it");
  if (moved_on) return answer(receipt, some ? Outcome::kClipped : Outcome::kStale, "wanted on the device again");
  if (o.busy) return answer(receipt, Outcome::kClipped, "a child of this session is running");
  return answer(receipt, Outcome::kApplied, "");
}

void Sam::note_copied(BlockId block, TimeNs now_ns) {
  for (size_t i = 0; i < offloads_.size();) {
    offloads_[i].copying.erase(block);
    if (!offloads_[i].copying.empty()) {
      ++i;
      continue;
    }
    Offload done = std::move(offloads_[i]);
    offloads_.erase(offloads_.begin() + static_cast<std::ptrdiff_t>(i));
    hint::Receipt receipt = settle_offload(done, now_ns);
    receipts_.push_back({std::move(done.tenant), std::move(receipt)});
  }
}

void Sam::cancel_offload(BranchId branch) {
  for (Offload& o : offloads_) {
    for (Offload::Part& part : o.parts) part.cancelled = part.cancelled || part.branch == branch;
  }
}

}  // namespace kvtide::session

#include "serving/copy_executor.h"

#include "base/check.h"

namespace kvtide::serving {

using session::Decision;

CopyExecutor::Loaded CopyExecutor::run() {
  Loaded loaded;
  for (std::vector<Decision> decisions = sam_.take_decisions(); !decisions.empty(); decisions = sam_.take_decisions()) {
    for (const Decision& d : decisions) {
      switch (d.kind) {
        case Decision::Kind::kTruncate: engine_.truncate(d.seq, d.end); break;
        case Decision::Kind::kShare: engine_.share(d.from, d.seq, d.end); break;
        case Decision::Kind::kDedup: engine_.dedup(d.from, d.seq, d.begin, d.end); break;
        case Decision::Kind::kCopyOut: copy_out(d); break;
        case Decision::Kind::kCopyIn: loaded = copy_in(d); break;
        case Decision::Kind::kDropHost:
          for (session::SlotId slot : d.slots) host_->drop(slot);
          break;
      }
    }
  }
  return loaded;
}

void CopyExecutor::copy_out(const Decision& d) {
  const base::TimeNs begin_ns = clock_.now();
  std::vector<tier::StoreTicket> tickets;
  std::vector<std::span<std::byte>> buffers;
  for (size_t i = 0; i < d.blocks.size(); ++i) {
    auto ticket = host_->prepare_store();
    if (!ticket) break;  // the manager counts slots, so this is a fault of the tier: the rest is not copied
    buffers.push_back(ticket->bytes);
    tickets.push_back(std::move(*ticket));
  }
  const bool ok = !buffers.empty() && engine_.export_blocks(d.seq, d.begin, buffers).has_value();
  const base::TimeNs end_ns = clock_.now();
  for (size_t i = 0; i < d.blocks.size(); ++i) {
    if (ok && i < tickets.size()) {
      const session::SlotId slot = tickets[i].lease.slot();
      totals_.bytes_out += static_cast<int64_t>(tickets[i].bytes.size());
      ++totals_.blocks_out;
      host_->complete_store(std::move(tickets[i]));
      sam_.copied_out(d.blocks[i], slot, end_ns);
      continue;
    }
    if (i < tickets.size()) host_->abort_store(std::move(tickets[i]));
    sam_.copy_out_failed(d.blocks[i], end_ns);
  }
  totals_.busy_ns += clock_.now() - begin_ns;
}

CopyExecutor::Loaded CopyExecutor::copy_in(const Decision& d) {
  const base::TimeNs begin_ns = clock_.now();
  Loaded loaded;
  std::vector<tier::LoadTicket> tickets;
  std::vector<std::span<const std::byte>> buffers;
  for (session::SlotId slot : d.slots) {
    auto ticket = host_->prepare_load(slot);
    if (!ticket) {
      loaded.fault = session::LoadFault::kCorrupt;
      break;
    }
    buffers.push_back(ticket->bytes);
    tickets.push_back(std::move(*ticket));
  }
  if (!buffers.empty()) {
    if (engine_.import_blocks(d.seq, d.begin, buffers).has_value()) {
      loaded.blocks = static_cast<int32_t>(buffers.size());
    } else {
      loaded.fault = session::LoadFault::kRefused;
    }
  }
  loaded.took_ns = clock_.now() - begin_ns;
  totals_.busy_ns += loaded.took_ns;
  totals_.blocks_in += loaded.blocks;
  for (int32_t i = 0; i < loaded.blocks; ++i) totals_.bytes_in += static_cast<int64_t>(buffers[static_cast<size_t>(i)].size());
  if (loaded.blocks > 0) {
    sam_.costs().note_load(static_cast<int64_t>(loaded.blocks) * static_cast<int64_t>(buffers[0].size()), loaded.took_ns);
  }
  return loaded;
}

}  // namespace kvtide::serving

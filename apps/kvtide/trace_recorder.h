// Writes every request that ends to a file in our own trace format (docs/traces.md), for `kvtide sim --trace FILE`.
//
// The file holds hashes, counts, times and plain tool names. Sessions (with their tenants) and blocks are hashed under two keys that are
// random for each recording and never leave the process, so that neither names nor known prompts can be tested against it.
//
// Threading: create(), begin() and finish() from one thread; finished() and called_tools() from one other (the loop). One thread of its own
// writes, between begin() and finish(). `say` is called from the writer and from finish().
// When full: the record is dropped and counted; said once when it begins, and the total is in Totals.
// Errors: after a failed write nothing more is recorded and the server goes on; said once. The file then ends with a whole line.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "serving/request_log.h"

namespace kvtide::app {

/// The newest line of some sessions, those written last. Bounded; forgotten ones just share nothing with their next line.
class LastLines {
 public:
  LastLines(size_t sessions_max, size_t labels_max) : sessions_max_(sessions_max), labels_max_(labels_max) {}

  /// How many leading labels equal those of the session's line before; `labels` becomes that line. O(labels).
  size_t replace(uint64_t session, std::vector<uint64_t> labels);
  size_t sessions() const { return lines_.size(); }
  size_t labels() const { return labels_; }

 private:
  struct Line {
    uint64_t session;
    std::vector<uint64_t> labels;
  };
  const size_t sessions_max_;
  const size_t labels_max_;
  std::list<Line> lines_;  // written last, first
  std::unordered_map<uint64_t, std::list<Line>::iterator> by_session_;
  size_t labels_ = 0;
};

class TraceRecorder final : public serving::RequestLog {
 public:
  struct Limits {
    size_t records_max = 4096;             // queued
    size_t keys_max = size_t{1} << 21;     // of records that are not written yet: 64 MiB
    size_t sessions_max = 4096;            // whose last line is remembered
    size_t labels_max = size_t{1} << 23;   // in those: 64 MiB
    std::chrono::nanoseconds tool_wait = std::chrono::milliseconds(500);  // a line waits so long to hear which tool its reply called
  };
  struct Totals {
    int64_t written = 0;
    int64_t dropped = 0;
    bool failed = false;
  };
  using Say = std::function<void(const std::string& line)>;

  /// Makes the file, readable by its owner only. Errors: kInvalidArgument (it exists), kUnavailable; the message names --record-trace.
  static base::Result<std::unique_ptr<TraceRecorder>> create(std::string path, Say say, Limits limits);
  static base::Result<std::unique_ptr<TraceRecorder>> create(std::string path, Say say) {
    return create(std::move(path), std::move(say), Limits{});
  }
  /// As finish(). A file whose recording never began is removed: the server did not start.
  ~TraceRecorder() override;

  /// Writes the first line and starts the writer; times count from `now_ns`. Errors: kUnavailable.
  base::Status begin(int32_t block_tokens, base::TimeNs now_ns);
  /// Writes all that was taken, and closes the file. Blocks for that long; idempotent. Call it when the loop has stopped.
  Totals finish();
  /// Requests in the file by now. Any thread.
  int64_t written() const { return written_; }

  void finished(serving::RequestRecord record) override;
  void called_tools(base::RequestId id, const std::vector<std::string>& tools) override;

 private:
  struct Call {
    base::RequestId id;
    std::string tool;  // empty: its name is not for a file
  };
  using Entry = std::variant<serving::RequestRecord, Call>;
  /// A record on its way to the file, hashed.
  struct Held {
    base::RequestId id;
    std::chrono::steady_clock::time_point since;
    base::TimeNs at_ns = 0;
    uint64_t session = 0;
    uint64_t parent = 0;  // 0: none
    int32_t prompt_tokens = 0;
    int32_t reply_tokens = 0;
    serving::FinishReason finish = serving::FinishReason::kStop;
    bool called = false;
    std::string tool;
    std::vector<uint64_t> labels;
  };

  TraceRecorder(std::string path, int file, Say say, Limits limits);

  uint64_t hidden_name(const std::string& tenant, const std::string& name) const;
  void write_all();
  void take(Entry entry);
  void release(bool all);
  void write_line(Held held);
  int flush();  // errno
  void stop_recording(int error);

  const std::string path_;
  const Say say_;
  const Limits limits_;
  int file_;
  std::array<uint8_t, 32> block_secret_{};
  std::array<uint8_t, 32> name_secret_{};
  base::TimeNs begin_ns_ = 0;

  base::BoundedQueue<Entry> queue_;
  std::atomic<size_t> keys_under_way_{0};
  std::atomic<int64_t> dropped_{0};
  std::atomic<int64_t> written_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> closing_{false};

  // The writer's; begin() touches them before it runs.
  std::deque<Held> held_;  // by end of the request
  LastLines last_lines_;
  std::string out_;
  int64_t file_bytes_ = 0;
  int64_t lines_in_out_ = 0;
  bool told_of_drops_ = false;

  std::thread writer_;  // last: it uses all of the above
};

}  // namespace kvtide::app

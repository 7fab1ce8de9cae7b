// The files of the dashboard, all in memory: a request can name one of them and nothing else.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/serve/request.h"

namespace lockstep::serve {

struct PageFile {
  std::string_view path;  // "index.html", "assets/index-3f2a.js"
  std::string_view bytes;
};
// What was in dashboard/dist when this was built (embed_page.cmake); empty when the page was not built.
std::span<const PageFile> embedded_page();

// Immutable after construction, so any thread may ask it.
class Page {
 public:
  // The files of `folder`, else those inside the program, else a page that says how to build it. Throws UserError when
  // `folder` has no index.html.
  explicit Page(const std::filesystem::path& folder = {});

  // The answer for a path; nothing when there is no such file. "/" is index.html.
  std::optional<Response> find(const Request& request) const;

 private:
  struct File {
    Response plain, packed;  // packed: status 0 when it is no smaller
  };
  void add(const std::string& path, std::string_view bytes);

  std::map<std::string, File> files_;
};

// With quotes; from the bytes.
std::string etag_of(std::string_view bytes);

}  // namespace lockstep::serve

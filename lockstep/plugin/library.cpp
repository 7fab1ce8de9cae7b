#include "lockstep/plugin/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "lockstep/base/file.h"
#include "lockstep/base/plugin_tag.h"
#include "lockstep/base/text.h"
#include "lockstep/plugin/entry.h"
#include "lockstep/plugin/option_map.h"

namespace lockstep::plugin {
namespace {

constexpr std::size_t kShownBytes = 300;  // of an exception
constexpr const char* kBuildFix = "build the plugin again: find_package(Lockstep) finds the libtorch of the engine";

// The entries of an opened plugin, by tag.
using Entries = std::map<std::string, const Entry*>;

void check_file(const spec::PluginUse& use) {
  const spec::PluginFile file = spec::look_at_plugin(use.file);
  if (!use.digest.empty() && file.digest != use.digest) {
    throw environment_error(fmt::format("{} has changed: {} now, {} when the job was read", printable_path(use.file),
                                        file.digest, use.digest),
                            "start the run again");
  }
  if (file.torch != TORCH_VERSION) {  // two of them in one process do not go well
    throw environment_error(fmt::format("{} was built against libtorch {}, and the engine uses libtorch {}",
                                        printable_path(use.file), file.torch, TORCH_VERSION),
                            kBuildFix);
  }
}

Entries open_file(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    throw environment_error(fmt::format("cannot open the plugin {}: {}", printable_path(path),
                                        why == nullptr ? "unknown error" : printable(why, kShownBytes)),
                            kBuildFix);
  }
  const auto function = reinterpret_cast<EntriesFunction*>(::dlsym(handle, "lockstep_plugin_entries"));
  if (function == nullptr) {
    throw environment_error(printable_path(path) + " hides its function lockstep_plugin_entries",
                            "do not strip it, and let it be visible");
  }
  const Entry* const* begin = nullptr;
  const Entry* const* end = nullptr;
  function(&begin, &end);
  Entries entries;
  for (; begin != end; ++begin) {
    if (entries.emplace((*begin)->tag, *begin).second) continue;
    throw bad_input(fmt::format("{} registers {} twice", printable_path(path),
                                std::string((*begin)->tag).substr(sizeof(LOCKSTEP_PLUGIN_TAG) - 1)),
                    "give each a name of its own");
  }
  return entries;
}

const Entry& entry_of(const spec::PluginUse& use, spec::PluginKind kind) {
  static std::mutex mutex;
  static std::map<std::string, Entries> opened;  // by path: an object cannot be opened twice, nor closed
  const std::lock_guard lock(mutex);
  auto found = opened.find(use.file);
  if (found == opened.end()) {
    check_file(use);
    found = opened.emplace(use.file, open_file(use.file)).first;
  }
  const std::string name = fmt::format("{}:{}", to_string(kind), use.name);
  const auto entry = found->second.find(LOCKSTEP_PLUGIN_TAG + name);
  if (entry != found->second.end()) return *entry->second;
  throw bad_input(fmt::format("{} has no {} `{}`", printable_path(use.file), to_string(kind), printable(use.name)),
                  "was it built again since the job was read?");
}

template <class Base>
std::unique_ptr<Base> make(const spec::PluginUse& use, spec::PluginKind kind, const std::string& section,
                           Split split = Split::kTraining) {
  const Entry& entry = entry_of(use, kind);
  OptionMap options(use.options, section);
  std::unique_ptr<Base> made(
      calling(title_of(use, kind), "its constructor", [&] { return static_cast<Base*>(entry.make(options, split)); }));
  options.finish();
  return made;
}

}  // namespace

std::string title_of(const spec::PluginUse& use, spec::PluginKind kind) {
  return fmt::format("{}: {} `{}`", printable(std::filesystem::path(use.file).filename().string()), to_string(kind),
                     printable(use.name));
}

void rethrow_as_user_error(const std::string& title, const std::string& doing) {
  const auto failed = [&](std::string reason) {
    reason = trim(reason);
    return UserError(
        ExitCode::kRunFailed,
        fmt::format("{}: {} failed: {}", title, doing, printable(reason.substr(0, reason.find('\n')), kShownBytes)),
        "the plugin's code threw this");
  };
  try {
    throw;
  } catch (const UserError&) {
    throw;
  } catch (const Fault&) {
    throw;
  } catch (const c10::Error& error) {
    throw failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw failed(error.what());
  } catch (...) {
    throw failed("something that is no std::exception was thrown");
  }
}

std::unique_ptr<Model> make_model(const spec::PluginUse& use, const std::string& section) {
  return make<Model>(use, spec::PluginKind::kModel, section);
}

std::unique_ptr<Dataset> make_dataset(const spec::PluginUse& use, const std::string& section, Split split) {
  return make<Dataset>(use, spec::PluginKind::kDataset, section, split);
}

std::unique_ptr<LossFunction> make_loss(const spec::PluginUse& use, const std::string& section) {
  return make<LossFunction>(use, spec::PluginKind::kLoss, section);
}

std::unique_ptr<Metric> make_metric(const spec::PluginUse& use, const std::string& section) {
  return make<Metric>(use, spec::PluginKind::kMetric, section);
}

std::unique_ptr<Schedule> make_schedule(const spec::PluginUse& use, const std::string& section) {
  return make<Schedule>(use, spec::PluginKind::kSchedule, section);
}

}  // namespace lockstep::plugin

#include "lockstep/tune/space/config.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"

namespace lockstep::tune {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

std::string to_text(const Value& value) {
  return std::visit(
      Overloaded{[](std::monostate) { return std::string(); },
                 [](bool flag) { return std::string(flag ? "true" : "false"); },
                 [](std::int64_t number) { return fmt::format("{}", number); },
                 [](double number) { return exact_real(number); }, [](const std::string& text) { return text; }},
      value);
}

nlohmann::json to_json(const Value& value) {
  return std::visit(Overloaded{[](std::monostate) { return nlohmann::json(); },
                               [](const auto& something) { return nlohmann::json(something); }},
                    value);
}

}  // namespace lockstep::tune

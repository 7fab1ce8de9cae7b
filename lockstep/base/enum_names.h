// One list of names for an enumeration, for writing and for reading. Beside the enumeration stands
//
//   enum class Color { kRed, kBlue };
//   constexpr auto names_of(Color) { return enum_names<Color::kBlue>("red", "blue"); }
//
// and from it come to_string(Color::kRed), value_named<Color>("red") and MapReader::choice(key, color).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep {

// The names in the order of the enumerators, which count up from 0 to `kLast`.
template <auto kLast, class... Names>
constexpr std::array<const char*, sizeof...(Names)> enum_names(Names... names) {
  static_assert(sizeof...(Names) == static_cast<std::size_t>(kLast) + 1, "a name for each enumerator");
  return {names...};
}

// For names that one file alone needs: named<Color::kBlue>(color, "red", "blue").
template <auto kLast, class... Names>
constexpr const char* named(decltype(kLast) value, Names... names) {
  const auto all = enum_names<kLast>(names...);
  const auto index = static_cast<std::size_t>(value);
  return index < all.size() ? all[index] : "";
}

template <class E>
concept NamedEnum = requires(E value) {
  names_of(value);
};

template <NamedEnum E>
constexpr const char* to_string(E value) {
  constexpr auto kNames = names_of(E{});
  const auto index = static_cast<std::size_t>(value);
  return index < kNames.size() ? kNames[index] : "";
}

template <NamedEnum E>
constexpr std::optional<E> value_named(std::string_view name) {
  constexpr auto kNames = names_of(E{});
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace lockstep

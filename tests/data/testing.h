// What the data tests share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::data::testing {

inline void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

// Runs `action` and checks that it throws a UserError of this code whose message has all the parts.
inline void expect_user_error(ExitCode code, std::initializer_list<std::string> parts,
                              const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_FALSE(error.fix().empty()) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "`" << part << "` not in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "no UserError was thrown";
}

inline std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

// `count` images of 28x28 whose pixels are (image + position) % 256, labels image % 10.
inline std::string mnist_images(std::uint32_t count) {
  std::string bytes;
  for (const std::uint32_t field : {0x803u, count, 28u, 28u}) bytes.append(big_endian(field));
  for (std::uint32_t i = 0; i < count; ++i) {
    for (int p = 0; p < 28 * 28; ++p) bytes.push_back(static_cast<char>(i + p));
  }
  return bytes;
}

inline std::string mnist_labels(std::uint32_t count) {
  std::string bytes = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

// `count` CIFAR-10 records: label (first + i) % 10, pixels of channel c all equal to (first + i) * 3 + c.
inline std::string cifar_records(int first, int count) {
  std::string bytes;
  for (int i = first; i < first + count; ++i) {
    bytes.push_back(static_cast<char>(i % 10));
    for (int c = 0; c < 3; ++c) bytes.append(32 * 32, static_cast<char>(i * 3 + c));
  }
  return bytes;
}

}  // namespace lockstep::data::testing

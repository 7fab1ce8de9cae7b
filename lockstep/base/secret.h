// Secrets: made from the kernel's random source, kept in files that only their owner reads, compared in constant time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// So many bytes from the kernel's random source, as twice as many hexadecimal digits. Throws environment_error.
std::string random_hex(std::size_t bytes);

// Takes the same time wherever they differ; the lengths are no secret.
bool same_secret(std::string_view given, std::string_view right);

inline constexpr std::size_t kSecretDigits = 64;

// What `file` holds, without white space at the ends; made (64 hexadecimal digits, mode 0600, with its folder) where
// there is no such file. Whoever sees the name sees all of it, and of two makers one wins. Throws environment_error
// with `fix` when it cannot be made or read, when others may read it, or when it is shorter than `shortest`.
std::string secret_in_file(const std::filesystem::path& file, const std::string& fix,
                           std::size_t shortest = kSecretDigits);

}  // namespace lockstep

// Encodes or decodes line by line, for tests/data/compare_tokenizers.py.
//
//   data_tokenize_tool TOKENIZER            stdin: JSON strings, one per line; stdout: ids with spaces between
//   data_tokenize_tool TOKENIZER --decode   stdin: ids with spaces between;    stdout: JSON strings
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/tokenizer.h"

namespace {

void encode_lines(const lockstep::data::Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    const char* separator = "";
    for (const auto id : tokenizer.encode(nlohmann::json::parse(line).get<std::string>())) {
      std::cout << separator << id;
      separator = " ";
    }
    std::cout << '\n';
  }
}

void decode_lines(const lockstep::data::Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    std::vector<lockstep::data::TokenId> ids;
    for (lockstep::data::TokenId id = 0; numbers >> id;) ids.push_back(id);
    std::cout << nlohmann::json(tokenizer.decode(ids)).dump() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: data_tokenize_tool TOKENIZER [--decode]\n";
    return 2;
  }
  try {
    const auto tokenizer = lockstep::data::open_tokenizer(argv[1]);
    argc > 2 ? decode_lines(*tokenizer) : encode_lines(*tokenizer);
  } catch (const lockstep::UserError& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
  return 0;
}

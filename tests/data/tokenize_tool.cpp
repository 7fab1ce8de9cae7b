// Encodes or decodes line by line, for tests/data/compare_tokenizers.py and compare_chat_templates.py.
//
//   data_tokenize_tool TOKENIZER            stdin: JSON strings, one per line; stdout: ids with spaces between
//   data_tokenize_tool TOKENIZER --decode   stdin: ids with spaces between;    stdout: JSON strings
//   data_tokenize_tool TOKENIZER --chat     stdin: records of instruction data; stdout: [[id, counted], ...]
//   data_tokenize_tool TOKENIZER --shards OUTPUT INPUT...   what `lockstep tokenize --workers 1` does
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/instruction.h"
#include "lockstep/data/token_folder.h"
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

// With the template that the tokenizer's files name.
void encode_records(const std::string& name, const lockstep::data::Tokenizer& tokenizer) {
  using namespace lockstep::data;
  const TokenizerConfig config = read_tokenizer_config(name);
  const auto chat_template = choose_chat_template(lockstep::spec::ChatTemplate::kAuto, tokenizer, config);
  for (std::string line; std::getline(std::cin, line);) {
    for (const Conversation& conversation : read_conversations(nlohmann::json::parse(line), {"stdin"})) {
      InstructionExamples examples;
      examples.add(render(chat_template, conversation, {}, {"stdin"}), tokenizer);
      const InstructionExamples::Example example = examples.at(0);
      nlohmann::json pairs = nlohmann::json::array();
      for (std::size_t i = 0; i < example.ids.size(); ++i) pairs.push_back({example.ids[i], example.counted[i]});
      std::cout << pairs.dump() << '\n';
    }
  }
}

void write_shards(const std::string& name, char** begin, char** end) {
  lockstep::data::TokenizeRequest request;
  request.tokenizer = name;
  request.output = *begin;
  request.inputs.assign(begin + 1, end);
  request.workers = 1;
  std::cout << lockstep::data::tokenize_corpus(request).tokens << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: data_tokenize_tool TOKENIZER [--decode | --chat | --shards OUTPUT INPUT...]\n";
    return 2;
  }
  try {
    const auto tokenizer = lockstep::data::open_tokenizer(argv[1]);
    const std::string mode = argc > 2 ? argv[2] : "";
    if (mode == "--shards" && argc > 4) {
      write_shards(argv[1], argv + 3, argv + argc);
    } else if (mode == "--chat") {
      encode_records(argv[1], *tokenizer);
    } else {
      mode == "--decode" ? decode_lines(*tokenizer) : encode_lines(*tokenizer);
    }
  } catch (const lockstep::UserError& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
  return 0;
}

#include "lockstep/engine/exchange_text.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace lockstep::engine {
namespace {

comm::Buffer numbers(std::vector<std::int64_t>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), comm::DType::kI64};
}

comm::Buffer bytes(std::string& text) {
  return {text.data(), static_cast<std::int64_t>(text.size()), comm::DType::kU8};
}

}  // namespace

std::vector<std::string> gather_texts(comm::Communicator& group, const std::string& mine) {
  const auto size = static_cast<std::size_t>(group.size());
  if (size == 1) return {mine};
  std::vector<std::int64_t> length = {static_cast<std::int64_t>(mine.size())}, lengths(size);
  group.all_gather(numbers(length), numbers(lengths), comm::at_site("texts: lengths")).wait();
  const auto most = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> texts(size);
  if (most == 0) return texts;
  std::string padded = mine, all(most * size, '\0');
  padded.resize(most);
  group.all_gather(bytes(padded), bytes(all), comm::at_site("texts")).wait();
  for (std::size_t i = 0; i < size; ++i) texts[i] = all.substr(i * most, static_cast<std::size_t>(lengths[i]));
  return texts;
}

std::vector<std::string> exchange_texts(comm::Communicator& group, const std::vector<std::string>& texts) {
  if (group.size() == 1) return texts;
  std::vector<std::int64_t> sent, received(texts.size());
  std::string out;
  for (const std::string& text : texts) {
    sent.push_back(static_cast<std::int64_t>(text.size()));
    out += text;
  }
  group.all_to_all(numbers(sent), numbers(received), comm::at_site("texts: lengths")).wait();
  std::string in(static_cast<std::size_t>(std::accumulate(received.begin(), received.end(), std::int64_t{0})), '\0');
  group.all_to_all(bytes(out), sent, bytes(in), received, comm::at_site("texts")).wait();
  std::vector<std::string> result;
  std::size_t at = 0;
  for (const std::int64_t length : received) {
    result.push_back(in.substr(at, static_cast<std::size_t>(length)));
    at += static_cast<std::size_t>(length);
  }
  return result;
}

}  // namespace lockstep::engine

// The normalisation step of a tokenizer: text to text, before anything is split.
#pragma once

#include <string>
#include <vector>

namespace lockstep::data {

// What tokenizer.json calls a BertNormalizer.
struct BertNormalization {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kBert } kind;
  BertNormalization bert;
};

// The steps in order; none: the text as it is.
using Normalizer = std::vector<NormalizerStep>;

std::u32string run_normalizer(const Normalizer& normalizer, std::u32string text);

}  // namespace lockstep::data

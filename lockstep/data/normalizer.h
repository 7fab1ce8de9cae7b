// The normalisation step of a tokenizer: text to text, before anything is split.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/charsmap.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {

// What tokenizer.json calls a BertNormalizer.
struct BertNormalization {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

struct NormalizerStep {
  enum class Kind {
    kForm,  // to a normal form
    kLowercase,
    kBert,
    kPrepend,        // `to` before every piece that is not empty
    kReplace,        // every `from` by `to`
    kReplaceSpaces,  // two spaces and more in a row by one `to`
    kStrip,          // white space at the ends, `left` and `right`
    kStripAccents,   // combining marks
    kNmt,            // SentencePiece's: control characters vanish, rare white space becomes a space
    kCharsmap        // SentencePiece's table
  } kind;
  NormalForm form = NormalForm::kNfc;
  BertNormalization bert = {};
  std::string from = {};
  std::string to = {};
  bool left = false, right = false;
  std::shared_ptr<const Charsmap> charsmap = nullptr;
};

// Where a piece of text stands, for the steps that put a space before text.
struct PiecePlace {
  bool first = true;     // the text begins with it
  bool goes_on = false;  // it follows other text, without an added token between them: nothing is put before it
};

// The steps in order; none: the text as it is. Texts are valid UTF-8.
using Normalizer = std::vector<NormalizerStep>;

std::string run_normalizer(const Normalizer& normalizer, std::string text, PiecePlace place = {});

}  // namespace lockstep::data

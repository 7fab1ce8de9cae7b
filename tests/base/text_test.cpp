#include "lockstep/base/text.h"

#include <gtest/gtest.h>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

TEST(Text, edit_distance_counts_single_slips) {
  EXPECT_EQ(edit_distance("micro", "micro"), 0);
  EXPECT_EQ(edit_distance("mciro", "micro"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("micr", "micro"), 1);
  EXPECT_EQ(edit_distance("miccro", "micro"), 1);
  EXPECT_EQ(edit_distance("mikro", "micro"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance(std::string(100000, 'a'), "b"), 256);
}

TEST(Text, nearest_is_the_closest_candidate_and_none_when_all_are_far) {
  const std::vector<std::string> keys = {"micro", "accumulation", "sequence_length"};
  EXPECT_EQ(nearest("mciro", keys), "micro");
  EXPECT_EQ(nearest("MICRO", keys), "micro");
  EXPECT_EQ(nearest("seq_length", keys), "sequence_length");
  EXPECT_EQ(nearest("zzzzzz", keys), std::nullopt);
  EXPECT_EQ(nearest("dpp", {"pp", "dp"}), "pp");  // a tie goes to the earlier one
  EXPECT_EQ(nearest("seq_len", keys), "sequence_length");
  EXPECT_EQ(nearest("microbatch", keys), "micro");
  EXPECT_EQ(did_you_mean("mciro", keys), "did you mean `micro`?");
  EXPECT_EQ(did_you_mean("zzzzzz", keys), "known: micro, accumulation, sequence_length");
}

TEST(Text, numbers_tell_names_apart) {
  const std::vector<std::string> precisions{"fp64", "fp32", "fp16", "bf16", "fp8"};
  EXPECT_EQ(nearest("fp4", precisions), std::nullopt);
  EXPECT_EQ(did_you_mean("fp4", precisions), "known: fp64, fp32, fp16, bf16, fp8");
  EXPECT_EQ(nearest("pf16", precisions), "fp16");
  EXPECT_EQ(nearest("fp61", precisions), "fp16") << "digits swapped";
  const std::vector<std::string> models{"gpt2-124m", "llama2-13b",  "llama2-70b", "llama2-7b",
                                        "llama3-8b", "llama3.2-1b", "mistral-7b", "tinyllama-1.1b"};
  EXPECT_EQ(nearest("llama-1b", models), "llama3.2-1b");
  EXPECT_EQ(nearest("llama-7b", models), "llama2-7b");
  EXPECT_EQ(nearest("Llama-3-8B", models), "llama3-8b");
  EXPECT_EQ(nearest("llama2-7b-hf", models), "llama2-7b");
  EXPECT_EQ(nearest("mistrall-7b", models), "mistral-7b");
  EXPECT_EQ(nearest("gpt2", models), "gpt2-124m");
  EXPECT_EQ(nearest("llama-405b", models), std::nullopt);
}

TEST(Text, split_and_join_are_inverse) {
  for (const char* text : {"", ",", "a", "a,b", ",a,,b,"}) EXPECT_EQ(join(split(text, ','), ","), text);
  EXPECT_EQ(split("a.b.c", '.').size(), 3u);
}

TEST(Text, what_cannot_be_shown_is_escaped) {
  EXPECT_TRUE(is_printable("caf\xc3\xa9, a b"));
  for (const char* text : {"a\nb", "a\x1b[2J", "caf\xe9", "\xc0\xaf", "\xed\xa0\x80", "a\xe2\x80\xae", "\xc2\x9b"}) {
    EXPECT_FALSE(is_printable(text)) << printable(text);
    EXPECT_TRUE(is_printable(printable(text))) << printable(text);
  }
  EXPECT_EQ(printable("caf\xc3\xa9"), "caf\xc3\xa9");
}

TEST(Text, printable_keeps_messages_on_one_short_line) {
  EXPECT_EQ(printable("a\nb\x1b"), "a\\x0ab\\x1b");
  EXPECT_EQ(printable(std::string(100, 'x'), 5), "xxxxx...");
}

TEST(Clock, timestamps_are_utc_with_milliseconds) {
  EXPECT_EQ(utc_timestamp(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_timestamp(1700000000.1254), "2023-11-14T22:13:20.125Z");
  EXPECT_EQ(utc_timestamp(-0.5), "1969-12-31T23:59:59.500Z");
}

TEST(Clock, deadlines_expire_and_never_means_never) {
  EXPECT_TRUE(Deadline::after(0).expired());
  EXPECT_EQ(Deadline::after(-5).remaining(), 0.0);
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining_milliseconds(250), 250);
  EXPECT_GT(Deadline::after(60).remaining(), 50.0);
}

}  // namespace
}  // namespace lockstep

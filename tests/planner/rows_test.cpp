#include "lockstep/planner/rows/rows.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/planner/rows/predict_rows.h"
#include "lockstep/spec/parameter_count.h"

namespace lockstep::planner {
namespace {

const std::string kPublished = LOCKSTEP_SOURCE_DIR "/validation/published/";

PublishedRow row_of(const std::string& columns, const std::string& values) {
  return read_published_rows(columns + "\n" + values + "\n", "rows.csv").rows.at(0);
}

RowQuestion question(const PublishedRow& row) {
  const RowReading reading = question_of(row);
  EXPECT_TRUE(reading.question) << reading.why_not;
  return reading.question.value_or(RowQuestion{});
}

PublishedRow published(const std::string& file, const std::string& id) {
  for (PublishedRow& row : load_published_rows(kPublished + file).rows) {
    if (row.id == id) return row;
  }
  ADD_FAILURE() << "no row " << id;
  return {};
}

const std::string kColumns =
    "hardware,gpus,gpus_per_node,model,arch,layers,hidden,heads,vocab,seq_len,global_batch_seqs,dp,tp,pp";

const std::string kMemoryRow = "H100,8,8,m,llama,16,2048,16,32000,2048,64,8,1,1,";

TEST(MemoryFacts, OfARowAreWhatItIsPricedWith) {
  const RowQuestion plain = question(row_of(kColumns, kMemoryRow.substr(0, kMemoryRow.size() - 1)));
  const RowQuestion said =
      question(row_of(kColumns + ",memory_facts",
                      kMemoryRow + "selective=every_second_product; logits_share=0.125;bucket_bytes=2;master_copy=no"));
  EXPECT_TRUE(said.facts.recomputes_every_second_product);
  EXPECT_FALSE(said.facts.recomputes_attention_block);
  EXPECT_DOUBLE_EQ(said.facts.logits_share, 0.125);
  EXPECT_DOUBLE_EQ(said.facts.bucket_gradient_bytes, 2);
  EXPECT_FALSE(said.facts.master_copy);
  const cost::Profile profile = cost::profile_for("H100");
  const auto memory = [&](const RowQuestion& asked) {
    cost::Profile facts = profile;
    facts.fitted->facts = asked.facts;
    return *price_question(asked, facts).memory_gib;
  };
  EXPECT_LT(memory(said), memory(plain));
}

TEST(MemoryFacts, ThatNobodyKnowsAreRefusedWithTheirLineAndTheKeys) {
  for (const auto& [text, expected] :
       {std::pair{"logit_share=0.1", "`logit_share` is none of selective, logits_share"},
        std::pair{"selective=half", "expected one of scores, attention_block, every_second_product"},
        std::pair{"logits_share=2", "expected a number from 0 to 1"},
        std::pair{"master_copy=maybe", "expected yes or no"}, std::pair{"eager", "is not KEY=VALUE"}}) {
    const RowReading reading = question_of(row_of(kColumns + ",memory_facts", kMemoryRow + text));
    EXPECT_FALSE(reading.question) << text;
    EXPECT_NE(reading.why_not.find("line 2, column memory_facts: "), std::string::npos) << reading.why_not;
    EXPECT_NE(reading.why_not.find(expected), std::string::npos) << reading.why_not;
  }
}

TEST(Csv, ReadsQuotedCommasQuotesAndLineBreaks) {
  const CsvTable table = parse_csv("a,b\r\n\"1,\"\"x\"\"\",\"two\nlines\"\r\n3,\n", "t.csv");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0][0], "1,\"x\"");
  EXPECT_EQ(table.rows[0][1], "two\nlines");
  EXPECT_EQ(table.rows[1][1], "");
  EXPECT_EQ(table.lines[1], 4);
}

TEST(Csv, WritesWhatItReads) {
  const std::vector<std::string> fields{"plain", "a,b", "say \"no\"", "two\nlines", ""};
  const CsvTable table = parse_csv("a,b,c,d,e\n" + csv_line(fields), "t.csv");
  EXPECT_EQ(table.rows.at(0), fields);
}

TEST(Csv, RefusesWhatIsNoCsvWithItsLine) {
  for (const char* text : {"", "a,b\n1\n", "a,a\n1,2\n", "a,\n1,2\n", "a\nx\"y\n", "a\n\"x\"y\n", "a\n\"open\n"}) {
    EXPECT_THROW(parse_csv(text, "t.csv"), UserError) << text;
  }
  try {
    parse_csv("a,b\n1,2\n1,2,3\n", "t.csv");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().to_string(), "t.csv:3");
  }
}

TEST(Rows, AnySubsetOfColumnsInAnyOrder) {
  const PublishedTable table = read_published_rows("tp,unheard_of,hardware\n2,kept,H100-SXM-80GB\n", "rows.csv");
  EXPECT_EQ(table.rows[0].tp, 2);
  EXPECT_EQ(table.rows[0].cells[1], "kept");
  EXPECT_FALSE(table.rows[0].layers);
}

TEST(Rows, AWrongNumberIsANoteNotAnError) {
  for (const char* gpus : {"many", "-8", "0", "1.5", "1e30", "nan"}) {
    const RowReading reading =
        question_of(row_of("hardware,gpus,hidden,layers", std::string("H100,") + gpus + ",64,2"));
    EXPECT_FALSE(reading.question);
    EXPECT_NE(reading.why_not.find("gpus"), std::string::npos) << reading.why_not;
  }
}

TEST(Rows, ZeroReadsAsOneReplicaOverAllDataRanks) {
  const std::string values = "H100-SXM-80GB,64,8,m,llama,32,4096,32,32000,2048,512,32,2,1,";
  const RowQuestion sharded = question(row_of(kColumns + ",sharding", values + "zero1"));
  EXPECT_EQ(sharded.layout.dp, 1);
  EXPECT_EQ(sharded.layout.shard, 32);
  EXPECT_EQ(sharded.layout.zero, 1);
  const RowQuestion plain = question(row_of(kColumns + ",sharding", values + "none"));
  EXPECT_EQ(plain.layout.dp, 32);
  EXPECT_EQ(plain.layout.shard, 1);
  EXPECT_EQ(plain.layout.zero, 0);
  const RowQuestion hybrid = question(row_of(kColumns + ",sharding", values + "hsdp"));
  EXPECT_EQ(hybrid.layout.dp, 4);
  EXPECT_EQ(hybrid.layout.shard, 8);
  EXPECT_EQ(hybrid.layout.zero, 3);
}

TEST(Rows, WhatIsUnknownGetsTheUsualChoiceAndANote) {
  const RowQuestion usual = question(row_of("hardware,gpus,params_b", "A100-SXM-80GB,8,7"));
  EXPECT_NEAR(static_cast<double>(spec::parameter_count(usual.model)), 7e9, 1e9);
  EXPECT_EQ(usual.layout.world(), 8);
  for (const char* word : {"arch", "hidden", "layers", "recompute", "precision", "global batch", "micro-batch"}) {
    EXPECT_NE(usual.note.find(word), std::string::npos) << usual.note;
  }
}

TEST(Rows, APresetsNameGivesItsDimensionsAndStatedOnesWin) {
  const std::string columns = "hardware,gpus,model,precision,seq_len,vocab,layers,hidden";
  const RowQuestion named = question(row_of(columns, "H100-SXM-80GB,8,llama3-8b,bf16,4096,,,"));
  const spec::Model preset = spec::load_model("llama3-8b");
  EXPECT_EQ(named.model.hidden, preset.hidden);
  EXPECT_EQ(named.model.kv_heads, preset.kv_heads);
  EXPECT_EQ(spec::parameter_count(named.model), spec::parameter_count(preset));
  EXPECT_EQ(named.batch.sequence_length, 4096);
  EXPECT_NE(named.note.find("dimensions of the preset llama3-8b"), std::string::npos) << named.note;
  EXPECT_EQ(question(row_of(columns, "H100-SXM-80GB,8,llama3-8b,bf16,4096,32000,,")).model.vocab, 32000);
  EXPECT_EQ(question(row_of(columns, "H100-SXM-80GB,8,llama3-8b,bf16,4096,,12,1024")).model.hidden, 1024);
  EXPECT_EQ(question_of(row_of(columns, "H100-SXM-80GB,8,resnet50,bf16,,,,")).why_not,
            "resnet50 is not a language model");
}

TEST(Rows, AnUnknownPrecisionIsNotPricedAndNamesLineColumnAndWords) {
  const std::string columns = "hardware,gpus,model,seq_len,precision";
  const RowReading reading = question_of(row_of(columns, "H100-SXM-80GB,8,llama2-7b,4096,int4"));
  EXPECT_FALSE(reading.question);
  EXPECT_EQ(reading.why_not,
            "line 2, column precision: `int4` is none of fp64, fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4");
  EXPECT_EQ(question(row_of(columns, "H100-SXM-80GB,8,llama2-7b,4096,FP8")).layout.precision, spec::Precision::kFp8);
  const RowQuestion blank = question(row_of(columns, "H100-SXM-80GB,8,llama2-7b,4096,"));
  EXPECT_NE(blank.note.find("precision unknown: bf16"), std::string::npos) << blank.note;
}

TEST(Rows, MoreStagesThanLayersCannotRun) {
  const RowReading reading =
      question_of(row_of(kColumns, "H100-SXM-80GB,64,8,m,llama,16,2048,32,32000,2048,512,1,1,64"));
  EXPECT_FALSE(reading.question);
  EXPECT_TRUE(reading.cannot_run);
}

TEST(Rows, HardwareByNameWithItsLinks) {
  const RowQuestion mosaic = question(published("throughput.csv", "mosaic-139"));
  EXPECT_EQ(mosaic.device_kind, "A100-40");
  EXPECT_EQ(mosaic.cluster.groups[0].nics_per_node, 8);
  EXPECT_DOUBLE_EQ(mosaic.cluster.groups[0].nic.bytes_per_second, 25e9);
  EXPECT_EQ(mosaic.stack, "llm-foundry-pure");
  EXPECT_DOUBLE_EQ(mosaic.facts.reduced_gradient_bytes, 2);

  const RowQuestion jean_zay = question(published("throughput.csv", "bs-v100-22"));
  const spec::NodeGroup& group = jean_zay.cluster.groups[0];
  EXPECT_EQ(jean_zay.device_kind, "V100-16");
  EXPECT_EQ(group.nodes, 2);
  EXPECT_EQ(group.nics_per_node, 4);
  EXPECT_DOUBLE_EQ(group.nic.bytes_per_second, 12.5e9);
}

TEST(Rows, SequenceParallelAsTheRowSays) {
  EXPECT_FALSE(question(published("throughput.csv", "kor22-175b-full")).layout.sequence_parallel);
  EXPECT_TRUE(question(published("throughput.csv", "kor22-175b-selective")).layout.sequence_parallel);
  EXPECT_FALSE(question(published("throughput.csv", "meg21-18b")).layout.sequence_parallel);
  EXPECT_TRUE(question(published("throughput.csv", "dgxc-l70b-bf16-64")).layout.sequence_parallel);
}

TEST(Rows, EmbeddingsThatTakeTheirPlaceAmongTheLayers) {
  const RowQuestion bloom = question(published("throughput.csv", "bloom-prod"));
  EXPECT_EQ(bloom.layout.stage_layers.front(), 5);
  EXPECT_EQ(bloom.layout.stage_layers[1], 6);
  EXPECT_EQ(bloom.layout.stage_layers.back(), 5);
}

TEST(Rows, ModelsCountThePublishedParameters) {
  for (const char* file : {"throughput.csv", "grid_h100_ok.csv"}) {
    for (const PublishedRow& row : load_published_rows(kPublished + file).rows) {
      const RowReading reading = question_of(row);
      // 3%: published counts are rounded, 1.652B to 1.7B.
      if (!reading.question || !row.params_b || !is_strict(row)) continue;
      EXPECT_NEAR(static_cast<double>(spec::parameter_count(reading.question->model)) / (*row.params_b * 1e9), 1, 0.03)
          << row.id;
    }
  }
}

TEST(Rows, EveryPublishedRowIsPricedOrSaysWhyNot) {
  for (const char* file : {"throughput.csv", "grid_h100_ok.csv", "grid_h100_failed.csv", "vtrain_a100.csv"}) {
    for (const PublishedRow& row : load_published_rows(kPublished + file).rows) {
      const RowReading reading = question_of(row);
      if (!reading.question) {
        EXPECT_FALSE(reading.why_not.empty()) << row.id;
        EXPECT_FALSE(is_strict(row) && !is_failure(row)) << row.id << ": " << reading.why_not;
        continue;
      }
      const RowQuestion& asked = *reading.question;
      EXPECT_EQ(asked.layout.world(), *row.gpus) << row.id;
      EXPECT_FALSE(plan::find_layout_problem(asked.layout, &asked.model)) << row.id;
      EXPECT_EQ(asked.batch.global_sequences, asked.batch.micro * asked.batch.accumulation * asked.layout.data_ranks());
      EXPECT_GE(asked.cluster.devices(), asked.layout.world()) << row.id;
      EXPECT_FALSE(asked.stack.empty()) << row.source;
    }
  }
}

TEST(Rows, OurOwnStepOfOneGpuIsPricedByItsProfile) {
  const std::string columns = "source,ffn,micro_batch,grad_accum,sharding,act_ckpt,precision," + kColumns;
  const std::string point = "5632,8,1,none,none,bf16,H200,1,1,x,llama,24,2048,16,32000,2048,8,1,1,1";
  RowPredictor predictor;
  const RowPrediction ours = predictor.predict(row_of(columns, "Lockstep," + point));
  const RowPrediction theirs = predictor.predict(row_of(columns, "somebody," + point));
  ASSERT_TRUE(ours.tokens_per_second_per_gpu && theirs.tokens_per_second_per_gpu) << ours.note << theirs.note;
  EXPECT_NE(ours.note.find("fused step"), std::string::npos) << ours.note;
  EXPECT_EQ(theirs.note.find("fused step"), std::string::npos) << theirs.note;
  EXPECT_NEAR(*ours.memory_gib, 44.3, 0.5);  // measured
  const plan::Interval& rate = *ours.tokens_per_second_per_gpu;
  EXPECT_NEAR(rate.expected, 65e3, 5e3);
  EXPECT_LT(rate.high / rate.low, theirs.tokens_per_second_per_gpu->high / theirs.tokens_per_second_per_gpu->low);
}

TEST(Rows, StrictRowsAndTheirFolds) {
  const PublishedTable table = load_published_rows(kPublished + "throughput.csv");
  std::int64_t strict = 0;
  std::int64_t measured = 0;
  std::set<std::string> folds;
  for (const PublishedRow& row : table.rows) {
    if (!is_strict(row)) continue;
    ++strict;
    folds.insert(fold_of(row));
    if (question(row).tokens_per_second_per_gpu) ++measured;
  }
  EXPECT_EQ(strict, 350);
  EXPECT_EQ(measured, 347);  // three have TFLOP/s only, which follow conventions of their own
  EXPECT_GT(folds.size(), 60u);
}

TEST(Rows, FailuresAreToldApart) {
  EXPECT_TRUE(is_failure(published("grid_h100_failed.csv", "ultra-failed-sha-0000")));
  EXPECT_TRUE(is_failure(published("throughput.csv", "bloom-085")));
  EXPECT_FALSE(is_failure(published("grid_h100_ok.csv", "ultra-0000")));
}

}  // namespace
}  // namespace lockstep::planner

// The state of the GPUs that fake_nvml.cpp makes up; a test changes it through fake_nvml_state(), or says with
// $FAKE_NVML="1:0.6" before it is opened that GPU 1 is hot and at 60% of its clock and the others are well.
#pragma once

struct FakeGpu {
  bool lost = false;
  unsigned long long uncorrected = 0;
  unsigned int remap_pending = 0, remap_failed = 0;
  unsigned long long slowdowns = 0;
  unsigned int temperature = 40;
  unsigned int clock_mhz = 345;
  unsigned long long xid = 0;  // one event; 0: none
};

struct FakeNvml {
  unsigned int count = 2;
  FakeGpu gpus[4];
};

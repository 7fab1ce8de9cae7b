// Made-up shared libraries for the doctor's tests; what each exports is chosen by a definition.
extern "C" {
#if defined(FAKE_BLAS) || defined(FAKE_OPENBLAS)
void sgemm_() {}
#endif
#if defined(FAKE_OPENBLAS)
const char* openblas_get_config() { return "fake"; }
#endif
#if defined(FAKE_TORCH)
int fake_torch() { return 1; }
#endif
#if defined(FAKE_ENGINE)
void sgemm_();
int fake_torch();
const char* lockstep_engine_versions() {
  sgemm_();
  return fake_torch() == 1 ? "{\"torch\": \"9.99\"}" : "";
}
#endif
}
